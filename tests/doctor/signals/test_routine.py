"""Lines that only copy and average weights are heard in some steps, and all other lines in each."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from halfstep.doctor import Watch
from halfstep.doctor.actions.hearing import Hearing
from halfstep.doctor.signals.program.routine import CALLS, EVERY, STEPS
from halfstep.doctor.signals.values.origins import Origins

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 24
LAYERS = CALLS


class Heard(list[Counter[str]]):
    """How often each function was heard, by step."""

    def of(self, name: str) -> list[int]:
        return [each[name] for each in self]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    counts, take = Heard(), Hearing.take

    def counted(self, call, result):
        counts[-1][call.function.__name__] += 1
        take(self, call, result)

    monkeypatch.setattr(Hearing, "take", counted)
    return counts


def train(
    heard: Heard,
    after: Callable[[nn.Module, int], None],
    before: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Watch:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(LAYERS)], nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(COUNT, 8, 4)
    with Watch() as watch:
        for step in range(COUNT):
            heard.append(Counter())
            images = inputs[step] if before is None else before(inputs[step])
            optimizer.zero_grad()
            mse_loss(model(images), inputs[step]).backward()
            optimizer.step()
            after(model, step)
    assert not watch.troubles
    return watch


def averaging(dtype: torch.dtype = torch.float32) -> Callable[[nn.Module, int], None]:
    averages: list[nn.Module] = []

    @torch.no_grad()
    def update(model: nn.Module, _: int) -> None:
        if not averages:
            averages.append(copy.deepcopy(model).to(dtype))
        state = model.state_dict()
        for name, mine in averages[0].state_dict().items():
            if mine.is_floating_point():
                mine.mul_(0.99)
                mine.add_(state[name].to(dtype), alpha=0.01)

    return update


def test_an_average_is_heard_in_the_first_steps_and_in_every_eighth(heard) -> None:
    train(heard, averaging())
    for name in ("mul_", "add_"):
        counts = heard.of(name)
        assert counts[0] >= LAYERS
        late = counts[STEPS + 2 :]
        assert late == [
            counts[0] * ((COUNT - len(late) + n + 1) % EVERY == 0) for n in range(len(late))
        ]


def test_an_average_in_half_precision_is_always_heard(heard) -> None:
    train(heard, averaging(torch.bfloat16))
    assert set(heard.of("add_")) == {heard.of("add_")[0]}


def test_a_write_of_trained_weights_is_always_heard(heard) -> None:
    def decay(model: nn.Module, _: int) -> None:
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(0.999)

    train(heard, decay)
    assert set(heard.of("mul_")) == {LAYERS + 2}


def test_samples_that_are_prepared_one_by_one_are_always_heard(heard) -> None:
    def prepared(images: torch.Tensor) -> torch.Tensor:
        return torch.stack([(each - 0.5).div(0.5) for _ in range(4) for each in images])[:8]

    train(heard, lambda *_: None, prepared)
    assert set(heard.of("div")) == {32}


def test_the_result_of_a_call_that_is_not_heard_is_no_data(heard) -> None:
    made: list[torch.Tensor] = []

    @torch.no_grad()
    def copied(model: nn.Module, _: int) -> None:
        made[:] = [each.mul(2.0) for each in model.parameters()]

    watch = train(heard, copied)
    assert heard.of("mul")[-2:] == [0, LAYERS + 2]
    assert COUNT % EVERY == 0
    last = watch.bus[Origins]
    assert last.of(made[0]).is_known is False


def test_a_line_that_changes_what_it_does_is_heard_again(heard) -> None:
    @torch.no_grad()
    def scaled(model: nn.Module, step: int) -> None:
        others = [torch.ones(2) for _ in range(LAYERS)]
        for each in others if step >= EVERY else model.parameters():
            each.mul(2.0)

    train(heard, scaled)
    assert heard.of("mul")[STEPS + 1] == 0
    assert set(heard.of("mul")[2 * EVERY :]) == {LAYERS}


def test_whole_numbers_are_heard_in_few_steps(heard: Heard) -> None:
    def places(inputs: torch.Tensor) -> torch.Tensor:
        [each + 1 for each in torch.arange(CALLS)]
        return inputs

    train(heard, lambda *_: None, places)
    assert heard.of("add") == [CALLS if step < STEPS else 0 for step in range(COUNT)]


def test_the_calls_by_which_torch_clips_are_one_norm_and_one_write(heard: Heard) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Watch() as watch:
        for _ in range(3):
            heard.append(Counter())
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    evidence = watch.close()
    assert not any(each["_foreach_norm"] + each["_foreach_mul_"] for each in heard)
    assert evidence.loop.count("read") == evidence.loop.count("write") == 3


def test_the_calls_that_clip_half_gradients_are_heard(heard: Heard) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    with Watch():
        heard.append(Counter())
        model(torch.randn(8, 4, dtype=torch.bfloat16)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert heard[0]["_foreach_norm"] + heard[0]["linalg_vector_norm"] > 0


def test_a_closure_is_of_the_loop_and_the_rest_of_its_step_is_not(heard: Heard) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    fails = [False, True, False]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        if fails[len(heard) - 1]:
            raise RuntimeError
        return loss

    with Watch() as watch:
        for fail in fails:
            heard.append(Counter())
            if fail:
                with pytest.raises(RuntimeError):
                    optimizer.step(closure)
            else:
                optimizer.step(closure)
            torch.ones(2) + 1
    assert not watch.troubles
    assert watch.close().loop.count("step") == 2
    for names in heard:
        assert names["square"] == names["mean"] == names["add"] == 1
        assert not names["add_"]
