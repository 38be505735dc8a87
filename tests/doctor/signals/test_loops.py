"""What the signals of loops count, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from doctor.loops import batches, classifier
from doctor.programs.scale import unscaled_in_half
from doctor.programs.updates import (
    checkpoint_without_rng_state,
    clipped_nothing,
    gradients_kept_after_skip,
    hooks_pile_up,
    optimizer_rebuilt,
    uneven_micro_batches,
)
from halfstep.doctor import Evidence, Watch
from halfstep.doctor.signals.ledgers.clipping import ClippingLines
from halfstep.doctor.signals.ledgers.left_out import LeftOutLedger
from halfstep.doctor.signals.ledgers.piles import HookPiles
from halfstep.doctor.signals.ledgers.rebuilt import RebuiltOptimizers
from halfstep.doctor.signals.ledgers.uneven import UnevenLedger
from halfstep.doctor.signals.program.recomputed import RandomCheckpoints
from halfstep.doctor.signals.values.unscaling import HalfUnscalings


def evidence_of(program) -> Evidence:
    with Watch() as watch:
        program()
    assert not watch.troubles
    return watch.close()


def test_each_spike_without_a_step_is_compared_with_the_losses_before_it() -> None:
    (found,) = (
        evidence_of(gradients_kept_after_skip.broken_by_rare_spikes).of(LeftOutLedger).optimizers
    )
    assert (found.passes, found.steps, found.compared, found.high) == (3, 3, 3, 3)
    assert found.value > 10 > found.before
    assert found.what == "loss"


def test_a_program_that_steps_after_each_backward_leaves_out_none() -> None:
    found = evidence_of(gradients_kept_after_skip.healthy_spikes_that_are_cleared)
    assert found.of(LeftOutLedger).optimizers == ()


def test_clippings_are_counted_by_step() -> None:
    (line,) = (
        evidence_of(clipped_nothing.broken_by_an_iterator_that_the_first_step_uses_up)
        .of(ClippingLines)
        .lines
    )
    assert (line.steps, line.empty, line.bare) == (6, 5, 0)
    (line,) = evidence_of(clipped_nothing.mended).of(ClippingLines).lines
    assert (line.steps, line.empty, line.bare) == (6, 0, 0)


def test_hooks_of_a_line_are_counted_on_each_parameter() -> None:
    (line,) = evidence_of(hooks_pile_up.broken).of(HookPiles).lines
    assert (line.objects, line.hooks, line.again) == (2, 4, 3)
    # The second to fourth hooks run in 9, 6 and 3 steps, on 2 parameters.
    assert line.changes >= 2 * (9 + 6 + 3)
    assert evidence_of(hooks_pile_up.healthy_hooks_that_are_removed).of(HookPiles).lines == ()


def test_gradients_are_those_of_the_hooks_alone() -> None:
    """A hook that is examined returns what the program's hook returns."""

    def gradient() -> torch.Tensor:
        model = classifier()
        for _ in range(3):
            hooks_pile_up.damp(model)
        images, labels = next(batches(1))
        functional.cross_entropy(model(images), labels).backward()
        return model[0].weight.grad.clone()

    expected = gradient()
    watched: list[torch.Tensor] = []
    evidence_of(lambda: watched.append(gradient()))
    assert torch.equal(watched[0], expected)


def test_optimizers_and_their_steps_are_counted_by_line() -> None:
    (line,) = evidence_of(optimizer_rebuilt.broken).of(RebuiltOptimizers).lines
    assert (line.built, line.continued, line.steps) == (6, 5, 15)
    assert line.memory == pytest.approx(10)


def test_targets_are_counted_for_each_micro_batch() -> None:
    (steps,) = evidence_of(uneven_micro_batches.broken).of(UnevenLedger).optimizers
    assert (steps.windows, steps.uneven) == (5, 5)
    assert steps.targets == uneven_micro_batches.COUNTS


@pytest.mark.parametrize("name", ["broken", "broken_in_a_reentrant_checkpoint"])
def test_a_checkpoint_draws_numbers_in_each_examined_run(name: str) -> None:
    program = getattr(checkpoint_without_rng_state, name)
    (line,) = evidence_of(program).of(RandomCheckpoints).lines
    assert line.draws == line.examined >= 3


@pytest.mark.parametrize("name", ["broken", "broken_by_a_product", "broken_in_place"])
def test_elements_that_a_division_in_fp16_loses_are_counted(name: str) -> None:
    (line,) = evidence_of(getattr(unscaled_in_half, name)).of(HalfUnscalings).lines
    assert line.divisor == unscaled_in_half.SCALE
    assert line.calls == 6 * 4
    assert 0 < line.lost <= line.examined


def test_values_inside_a_transform_are_not_sampled() -> None:
    """Gradients of each sample, as differentially private training computes them."""
    model = classifier().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parameters, image, label):
        return functional.cross_entropy(
            functional_call(model, parameters, image[None]), label[None]
        )

    with Watch() as watch:
        for images, labels in batches(4):
            weights = {name: each.detach() for name, each in model.named_parameters()}
            gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, images, labels)
            for name, each in model.named_parameters():
                each.grad = gradients[name].mean(0)
            optimizer.step()
    watch.close()
    assert watch.troubles == []


def test_a_limit_of_the_norm_in_fp16_is_no_loss_scale() -> None:
    """The factor of a clipping changes in each step."""

    def program() -> None:
        torch.manual_seed(0)
        model = nn.Linear(6, 3).half()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for number, (images, labels) in enumerate(batches(6)):
            optimizer.zero_grad()
            functional.cross_entropy(model(images.half()).float(), labels).backward()
            for each in model.parameters():
                each.grad.mul_(0.02 / (number + 1))
            optimizer.step()

    assert evidence_of(program).of(HalfUnscalings).lines == ()
