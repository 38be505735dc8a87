"""Clipping, against torch's own and timm's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.utils.agc import adaptive_clip_grad
from torch import nn
from torch.optim import SGD

from engine.tiny import digits_net, relative_error
from halfstep.engine import Engine
from halfstep.engine.closing.clipping import Clipping
from halfstep.kernels.gradients import dense, norms


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "o2"])
def test_adaptive_clipping_equals_timm(digits, recipe: str) -> None:
    images, labels = digits.batches(16, 1)[0]
    plain, model = digits_net(), digits_net()
    nn.functional.cross_entropy(plain(images), labels).backward()
    unclipped = torch.cat([param.grad.flatten() for param in plain.parameters()])
    adaptive_clip_grad(plain.parameters(), clip_factor=0.02)
    clipped = torch.cat([param.grad.flatten() for param in plain.parameters()])
    assert relative_error(clipped, unclipped) > 0.1

    start = torch.cat([param.detach().flatten() for param in model.parameters()])
    setting = {"base": recipe, "loss_scale": 256} if recipe != "fp32" else recipe
    optimizer = SGD(model.parameters(), lr=1.0)
    with Engine(model, optimizer, recipe=setting, clip_adaptive=0.02) as engine:
        with engine.autocast():
            loss = nn.functional.cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        assert engine.step().stepped
        state = model.state_dict()
        end = torch.cat([state[name].flatten() for name, _ in model.named_parameters()])
    assert relative_error(start - end, clipped) < (1e-5 if recipe == "fp32" else 2e-2)


# The square of anything smaller is not a number of fp32, in torch's own norm neither.
values = st.floats(-1e3, 1e3, width=32).filter(lambda value: value == 0 or abs(value) > 1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(values, min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_clipping_keeps_its_promise_and_leaves_small_gradients_alone(rows, data) -> None:
    params = [nn.Parameter(torch.zeros(len(row))) for row in rows]
    limit = data.draw(st.floats(0.01, 1e4))
    for how in ("norm", "value"):
        for param, row in zip(params, rows, strict=True):
            param.grad = torch.tensor(row)
        before = torch.cat([param.grad.clone() for param in params])
        each = norms(dense(params))
        total = torch.linalg.vector_norm(each)
        assert float(total) == pytest.approx(float(before.double().norm()), rel=1e-5, abs=1e-30)
        Clipping(**{how: limit}).apply(params, dense(params), total, lambda param: param)
        after = torch.cat([param.grad for param in params])
        size = after.norm() if how == "norm" else after.abs().max()
        assert float(size) <= limit * (1 + 1e-5)
        if float(before.abs().max() if how == "value" else before.norm()) < limit * 0.999:
            assert torch.equal(after, before)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"norm": 1.0, "value": 1.0}, "clip_norm and clip_value are both set"),
        ({"norm": -1.0}, "clip_norm is -1.0; allowed: a number above 0"),
        ({"adaptive": float("nan")}, "clip_adaptive is nan"),
    ],
)
def test_limits_that_make_no_sense_are_refused(given_: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Clipping(**given_)
