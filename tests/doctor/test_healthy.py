"""What looks alarming and is not: doctor says nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast, loss_of
from halfstep.doctor import Watch, diagnose


def quiet(program) -> Watch:
    observer = Watch()
    with observer:
        program()
    assert not observer.troubles
    assert diagnose(observer.close()).verdicts == ()
    return observer


def scaled(init_scale: float, factor: float = 1.0, count: int = 24, disturb=None) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    for number, (images, labels) in enumerate(batches(count)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels) * factor
        if disturb == number:
            loss = loss * 1e6
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_search_for_the_loss_scale_of_a_dozen_skips() -> None:
    observer = quiet(lambda: scaled(2.0**32))
    numbers = observer.close().numbers
    assert numbers.longest_run_of_skips >= 12
    assert not numbers.steps[-1].skipped
    plain = [each for each in observer.close().replays if each.name == "lower scale"]
    assert plain
    assert all(each.finite for each in plain)


def test_a_program_that_ends_while_it_searches() -> None:
    quiet(lambda: scaled(2.0**32, count=5))


def test_one_skipped_step() -> None:
    observer = quiet(lambda: scaled(2.0**14, disturb=7))
    assert observer.close().numbers.skips == 1


def test_accumulation_with_clipping_at_the_end_of_each_window() -> None:
    def program() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number, (images, labels) in enumerate(batches(8)):
            scaler.scale(loss_of(model, images, labels) / 4).backward()
            if number % 4 == 3:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    assert quiet(program).close().loop.iterations == 2


def test_two_models_that_take_turns_under_one_scaler() -> None:
    def program() -> None:
        torch.manual_seed(0)
        maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
        makes = torch.optim.Adam(maker.parameters(), lr=1e-3)
        judges = torch.optim.Adam(judge.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for images, _ in batches(5):
            with half_autocast():
                made = maker(torch.randn(8, 4))
                loss = functional.softplus(-judge(images)) + functional.softplus(
                    judge(made.detach())
                )
            judges.zero_grad()
            scaler.scale(loss.mean()).backward()
            scaler.step(judges)
            with half_autocast():
                loss = functional.softplus(-judge(made))
            makes.zero_grad()
            scaler.scale(loss.mean()).backward()
            scaler.step(makes)
            scaler.update()

    quiet(program)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_masked_attention_and_an_optimizer_with_a_closure(dtype) -> None:
    def program() -> None:
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        for _ in range(2):
            tokens = torch.randn(4, 5, 8)

            def closure(tokens=tokens):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    loss = model(tokens, src_mask=mask).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)

    quiet(program)
