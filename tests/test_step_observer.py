"""What the engine says of a step, and that by default it says it to nobody."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from halfstep import Engine, step_observer
from halfstep.step_observer import StepObserver, observe


class Notes(StepObserver):
    """Writes down what it is told, in order."""

    listens = True

    def __init__(self) -> None:
        self.told: list[str] = []
        self.scale = 0.0

    @contextmanager
    def work(self):
        self.told.append("work")
        yield
        self.told.append("done")

    def calls(self, function, args, result):
        assert torch.equal(function(*args), result)
        self.told.append("calls")

    def scales(self, scaler, own, loss, scaled):
        assert own is scaler
        assert torch.equal(scaled, loss * scaler.scale)
        self.told.append("scales")

    def accumulates(self, optimizer, params):
        self.told.append(f"accumulates {len(params)}")

    def unscales(self, scaler, optimizer):
        self.told.append(f"unscales {float(optimizer.param_groups[0]['params'][0].grad.sum()):g}")

    @contextmanager
    def steps(self, scaler, optimizer, found_inf, grad_norm, *, finite=False):
        before = optimizer.param_groups[0]["params"][0].clone()
        yield
        moved = not torch.equal(before, optimizer.param_groups[0]["params"][0])
        self.told.append(f"steps {float(found_inf):g} {moved}")

    def updates(self, scaler):
        self.told.append(f"updates {float(scaler.scale):g}")

    def restores(self, scaler):
        self.told.append(f"restores {float(scaler.scale):g}")

    def closes(self):
        self.told.append("closes")


@pytest.fixture
def notes():
    observer = Notes()
    end = observe(observer)
    yield observer
    end()


def engine() -> Engine:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Engine(model, optimizer, recipe={"loss_scale": {"init": 4.0}}, accumulate=2)


def micro_step(engine: Engine, value: float) -> None:
    engine.backward(engine.model(torch.full((1, 2), value)).sum())
    engine.step()


def test_a_window_is_told_in_the_order_in_which_it_happens(notes) -> None:
    with engine() as mine:
        micro_step(mine, 1.0)
        micro_step(mine, 3.0)
    backward = ["work", "calls", "accumulates 1", "scales", "done"]
    closing = ["work", "unscales 4", "steps 0 True", "updates 4", "done"]
    assert notes.told == [*backward, "work", "done", *backward, *closing, "closes"]


def test_who_does_not_listen_is_told_of_steps_only(notes) -> None:
    notes.listens = False
    with engine() as mine:
        micro_step(mine, 1.0)
        micro_step(mine, 3.0)
    assert notes.told == ["unscales 4", "steps 0 True", "updates 4", "closes"]


def test_a_step_that_is_skipped_is_told_too_and_moves_nothing(notes) -> None:
    with engine() as mine:
        micro_step(mine, 1.0)
        micro_step(mine, float("inf"))
    assert notes.told[-4:] == ["steps 1 False", "updates 2", "done", "closes"]


def test_a_loss_scale_that_is_loaded_is_told(notes) -> None:
    with engine() as mine:
        state = mine.state_dict()
        mine.load_state_dict(state)
    assert notes.told == ["restores 4", "closes"]


def test_nobody_is_told_by_default_and_after_the_end() -> None:
    before = step_observer.active
    assert type(before) is StepObserver
    notes = Notes()
    observe(notes)()
    assert step_observer.active is before
    with engine() as mine:
        micro_step(mine, 1.0)
    assert notes.told == []


def test_to_tell_nobody_costs_no_tensor_and_no_decision() -> None:
    nobody = StepObserver()
    asked = [
        nobody.work(),
        nobody.steps(None, None, None, None),
    ]
    assert all(each is asked[0] for each in asked)
    assert nobody.calls(None, (), None) is nobody.scales(None, None, None, None) is None


@pytest.mark.parametrize(("nonfinite", "expected"), [("skip", True), ("apply", False)])
def test_checked_gradients_are_told_to_be_finite(nonfinite, expected) -> None:
    known: list[bool] = []

    class Steps(StepObserver):
        @contextmanager
        def steps(self, scaler, optimizer, found_inf, grad_norm, *, finite=False):
            known.append(finite)
            yield

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    end = observe(Steps())
    with Engine(model, optimizer, recipe="fp32", nonfinite=nonfinite) as mine:
        micro_step(mine, 1.0)
    end()
    assert known == [expected]
