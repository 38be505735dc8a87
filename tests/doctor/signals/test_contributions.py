"""The ledger of gradients against counts by hand."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier
from doctor.programs.updates import gradients_cleared_early, two_owners
from doctor.programs.updates import gradients_of_another_loss as losses
from halfstep.doctor import Diagnosis, Watch, diagnose
from halfstep.doctor.record.contributions import Contributions, GradientLedger


def accounts(program) -> dict[int, Contributions]:
    with Watch() as watch:
        program()
    assert not watch.troubles
    return {each.number: each for each in watch.close().of(GradientLedger).optimizers}


def diagnosis_of(program) -> Diagnosis:
    with Watch() as watch:
        program()
    return diagnose(watch.close())


def test_each_backward_is_used_or_lost() -> None:
    generator, discriminator = accounts(losses.mended).values()
    assert (generator.backwards, generator.used, generator.lost) == (6, 6, 0)
    # The generator's losses reach the discriminator, too, where all but the last are cleared.
    assert (discriminator.backwards, discriminator.used) == (12, 6)
    assert (discriminator.lost, discriminator.waiting) == (5, 1)
    assert not discriminator.foreign


def test_steps_that_use_only_the_last_of_several_passes_are_booked() -> None:
    (account,) = accounts(gradients_cleared_early.broken_by_the_model).values()
    longer, shorter = account.early
    assert account.direct == 5
    assert (longer.steps, longer.passes) == (4, 2)
    assert (shorter.steps, shorter.passes) == (1, 1)
    assert longer.zero.text == "model.zero_grad()"
    assert longer.step.text == "optimizer.step()"


def test_windows_that_the_loop_begins_again_are_no_steps_with_the_last_pass_alone() -> None:
    (account,) = accounts(gradients_cleared_early.healthy_batches_left_out_elsewhere).values()
    assert (account.steps, account.lost) == (6, 18)
    assert sum(each.steps for each in account.early) <= 1


@pytest.mark.parametrize("examines", [False, True])
def test_a_step_after_gradients_that_the_loop_has_examined_is_not_early(*, examines) -> None:
    def program() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (images, labels) in enumerate(batches(9)):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            if number % 3 == 0 and examines:
                torch.stack([each.grad.norm() for each in model.parameters()])
            if number % 3 == 2:
                optimizer.step()

    (account,) = accounts(program).values()
    assert bool(account.early) != examines


def test_a_leak_is_booked_with_its_source() -> None:
    generator, discriminator = accounts(losses.broken).values()
    assert not generator.foreign
    (leak,) = discriminator.foreign
    assert (leak.steps, leak.passes, leak.user) == (5, 5, 0)
    assert "gan.lead" in leak.site.text
    assert "gan.judge" in leak.before.text


def test_the_passes_of_a_closure_are_used() -> None:
    runs = [0]

    def program() -> None:
        model = classifier()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        for images, labels in batches(4):

            def closure(images=images, labels=labels):
                runs[0] += 1
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images), labels)
                loss.backward()
                return loss

            optimizer.step(closure)

    (account,) = accounts(program).values()
    assert runs[0] > 4
    assert (account.used, account.lost, account.stacked) == (runs[0], 0, 0)
    assert account.steps == 4


def test_the_steps_on_shared_gradients_are_counted() -> None:
    first, second = accounts(two_owners.broken_without_a_scaler).values()
    assert first.shared == {}
    assert second.shared == {0: 6}


def test_a_single_attack_pass_per_step_is_a_note() -> None:
    diagnosis = diagnosis_of(losses.healthy_attack_that_adds_one_loss_of_clean_images)
    assert not diagnosis.verdicts
    (note,) = [each for each in diagnosis.notes if "gradients of an input" in each]
    assert note.startswith("6 steps of SGD also used the gradients of the backward() at ")


def test_steps_on_several_losses_are_no_uneven_windows() -> None:
    def program() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (images, labels) in enumerate(batches(6)):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            if number:
                model(images).square().mean().backward()
            optimizer.step()

    assert not [each for each in diagnosis_of(program).notes if "backward pass" in each]


@pytest.mark.parametrize("kind", ["models", "optimizers"])
def test_models_that_a_program_throws_away_are_freed(kind) -> None:
    with Watch() as watch:
        for _ in range(20):
            model = classifier()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for images, labels in batches(2):
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        gc.collect()
        assert len(getattr(watch.bus.registry, kind).alive()) <= 10


def test_nothing_keeps_a_graph_alive() -> None:
    class Trace(torch.autograd.Function):
        alive = 0

        @staticmethod
        def forward(ctx, inputs):
            ctx.mark = Mark()
            return inputs.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Mark:
        def __init__(self) -> None:
            Trace.alive += 1

        def __del__(self) -> None:
            Trace.alive -= 1

    with Watch():
        layer = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        for images, labels in batches(30):
            functional.cross_entropy(Trace.apply(layer(images)), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        gc.collect()
        assert Trace.alive < 15
