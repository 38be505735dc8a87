"""The momentum that a fused SGD is given before its first step."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD

from halfstep.engine.closing.fused import start_momentum


def test_start_momentum_gives_zeros_unless_dampening_needs_the_first_gradient() -> None:
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = SGD(
        [{"params": params[:1], "momentum": 0.9}, {"params": params[1:], "momentum": 0.0}],
        fused=True,
    )
    assert not optimizer.state
    assert start_momentum(optimizer)
    assert torch.equal(optimizer.state[params[0]]["momentum_buffer"], torch.zeros(2))
    assert "momentum_buffer" not in optimizer.state[params[1]]
    dampened = SGD([nn.Parameter(torch.ones(2))], momentum=0.9, dampening=0.1, fused=True)
    assert not start_momentum(dampened)
    assert start_momentum(SGD([nn.Parameter(torch.ones(2))], momentum=0.9)), "it is not fused"
