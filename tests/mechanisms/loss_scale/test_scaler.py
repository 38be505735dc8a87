"""The loss scaler against `torch.amp.GradScaler`, and what it adds: floor, ceiling, history."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD

from halfstep.kernels.gradients import unscale
from halfstep.mechanisms.loss_scale.scaler import LossScaler
from halfstep.recipe import LossScale

CPU = torch.device("cpu")


def drive(scaler: LossScaler, overflows: list[bool]) -> list[float]:
    scales = []
    for overflow in overflows:
        scaler.update(torch.tensor(float(overflow)))
        scales.append(float(scaler.scale))
    return scales


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 5),
    st.sampled_from([1.5, 2.0, 16.0]),
    st.sampled_from([0.25, 0.5, 0.9]),
)
def test_the_scale_is_gradscalers_bit_for_bit(overflows, interval, growth, backoff) -> None:
    """As long as neither floor nor ceiling is in the way, which GradScaler does not have."""
    reference = torch.amp.GradScaler(
        "cpu",
        init_scale=1000.0,
        growth_interval=interval,
        growth_factor=growth,
        backoff_factor=backoff,
    )
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = SGD([weight], lr=0.0)
    expected = []
    for overflow in overflows:
        reference.scale(weight * (float("inf") if overflow else 1e-30)).sum().backward()
        reference.step(optimizer)
        reference.update()
        optimizer.zero_grad()
        expected.append(reference.get_scale())
    ours = LossScaler(
        LossScale(
            init=1000.0,
            growth_interval=interval,
            growth_factor=growth,
            backoff_factor=backoff,
            floor=2.0**-120,
            ceiling=3e38,
        ),
        CPU,
    )
    found = drive(ours, overflows)
    within = [place for place, scale in enumerate(expected) if scale > 3e38 / growth]
    assert found[: min(within, default=None)] == expected[: min(within, default=None)]


def test_floor_and_ceiling_hold() -> None:
    scaler = LossScaler(LossScale(init=4.0, floor=1.5, ceiling=10.0, growth_interval=1), CPU)
    assert drive(scaler, [True] * 3) == [2.0, 1.5, 1.5]
    assert drive(scaler, [False] * 4) == [3.0, 6.0, 10.0, 10.0]


def test_a_static_scale_never_moves() -> None:
    scaler = LossScaler(LossScale.parse(128), CPU)
    assert drive(scaler, [True, False, True]) == [128.0] * 3


@pytest.mark.parametrize("init", [2.0**-126, 3e38])
def test_no_scale_that_is_allowed_makes_a_gradient_non_finite(init: float) -> None:
    """GradScaler's own may become subnormal: 1/scale is then infinite, and NaN is written."""
    settings_ = LossScale(init=init, floor=2.0**-126, ceiling=3e38)
    scaler = LossScaler(settings_, CPU)
    drive(scaler, [True] * 5)
    assert float(scaler.inverse()) < float("inf")
    grads, found = [torch.zeros(1)], torch.zeros(())
    unscale(grads, scaler.inverse(), found)
    assert grads[0].tolist() == [0.0]
    assert torch.tensor(1e-40).reciprocal().isinf()


def test_a_half_loss_is_widened_before_it_is_scaled() -> None:
    scaler = LossScaler(LossScale(), CPU)
    # torch itself promotes a scalar, but not a tensor of one element.
    for loss in (torch.tensor(2.0).half(), torch.tensor([2.0]).half()):
        scaled = scaler.apply(loss)
        assert scaled.dtype == torch.float32
        assert float(scaled) == 131072.0
    assert scaler.apply(torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float64


def test_history_and_collapse() -> None:
    scaler = LossScaler(LossScale(init=4.0, floor=1.0, collapse_after=3), CPU)
    assert scaler.record(1, scale=2.0, found_inf=True) is None
    assert scaler.record(2, scale=1.0, found_inf=True) is None
    assert "at its minimum, 1 (`floor`)" in scaler.record(3, scale=1.0, found_inf=True)
    assert scaler.record(4, scale=1.0, found_inf=False) is None
    assert [tuple(change) for change in scaler.history] == [
        (0, 4.0, "start"),
        (1, 2.0, "overflow"),
        (2, 1.0, "overflow"),
    ]
    scaler = LossScaler(LossScale(collapse_after=3), CPU)
    found = [scaler.record(i, scale=2.0 ** (15 - i), found_inf=True) for i in range(3)]
    assert found == [None, None, "3 steps in a row had non-finite gradients, and it is now 8192"]


@given(st.lists(st.booleans(), max_size=20))
@settings(max_examples=20, deadline=None)
def test_state_is_exact(overflows: list[bool]) -> None:
    first = LossScaler(LossScale(growth_interval=3, growth_factor=1.7, backoff_factor=0.3), CPU)
    drive(first, overflows)
    second = LossScaler(first.settings, CPU)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert drive(second, [False] * 4) == drive(first, [False] * 4)
