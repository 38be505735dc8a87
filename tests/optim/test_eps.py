"""An eps that is zero in the format in which an optimizer computes, and what comes of it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
)

from halfstep.optim.bf16 import AdamBf16
from halfstep.optim.eps import zero_eps, zero_eps_of
from halfstep.optim.lamb import LAMB
from halfstep.optim.larc import LARC

LOST = {
    "Adam": Adam,
    "AdamW": AdamW,
    "NAdam": NAdam,
    "RAdam": RAdam,
    "Adamax": Adamax,
    "RMSprop": RMSprop,
    "Adagrad": Adagrad,
    "Adam in LARC": lambda params: LARC(Adam(params)),
}
KEPT = {
    "SGD": SGD,
    "Adadelta": Adadelta,  # 1e-6
    "Adafactor": Adafactor,  # a pair
    "Adam, 3e-8": partial(Adam, eps=3e-8),
    "Adam, 0": partial(Adam, eps=0.0),
    "Adam, fused": partial(Adam, fused=True),
    "Adagrad that begins above 0": partial(Adagrad, initial_accumulator_value=0.1),
    "AdamBf16": AdamBf16,
    "LAMB": partial(LAMB, eps=1e-8),
}


def trained(build, dtype: torch.dtype) -> tuple[torch.optim.Optimizer, torch.Tensor]:
    """Return an optimizer and its parameter after seven steps; half of the gradients are zero."""
    param = nn.Parameter(torch.ones(8, dtype=dtype))
    optimizer = build([param])
    for _ in range(7):
        param.grad = torch.tensor([1.0, 0.0] * 4).to(dtype)
        optimizer.step()
    return optimizer, param


@pytest.mark.parametrize("name", LOST)
def test_an_eps_that_is_lost_gives_nan_where_the_gradient_is_zero(name: str) -> None:
    optimizer, param = trained(LOST[name], torch.float16)
    found = zero_eps_of(optimizer)
    assert found is not None
    assert float(torch.tensor(found.eps).half()) == 0
    assert param.isnan().tolist() == [False, True] * 4
    for dtype in (torch.bfloat16, torch.float32):
        optimizer, param = trained(LOST[name], dtype)
        assert zero_eps_of(optimizer) is None
        assert bool(param.isfinite().all())
        assert zero_eps_of(optimizer, "fp16") is not None, "under a recipe that is to come"


@pytest.mark.parametrize("name", KEPT)
def test_an_eps_that_is_no_divisor_of_zero_is_left_alone(name: str) -> None:
    optimizer, param = trained(KEPT[name], torch.float16)
    assert zero_eps_of(optimizer) is None
    assert name == "Adam, 0" or bool(param.isfinite().all())


def test_every_group_and_only_what_is_trained_counts() -> None:
    half, whole = nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.ones(2))
    optimizer = Adam([{"params": [half], "eps": 1e-4}, {"params": [whole]}])
    assert zero_eps_of(optimizer) is None
    optimizer.param_groups[1]["params"] = [half]
    assert str(zero_eps_of(optimizer)) == "eps = 1e-08 is 0 in fp16"
    half.requires_grad = False
    assert zero_eps_of(optimizer) is None


def test_formats_without_a_name_here_and_settings_without_an_eps_are_no_error() -> None:
    assert zero_eps({"eps": 1e-8}, "int8") is None
    assert zero_eps({}, "fp16") is None
    assert zero_eps({"eps": 1e-10}, "fp8-e5m2") is not None
