"""What a block of a sharded model does when its activations are computed again; in one process.

What processes check of sharded models is in `checks_fsdp.py`.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from engine.tiny import differences
from halfstep.engine.parallel import fsdp


def gradients(block: nn.Module, values: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of two losses of one forward pass."""
    outputs = block(values)
    outputs.sum().backward(retain_graph=True)
    outputs.square().sum().backward()
    return [param.grad for param in block.parameters()]


def test_activations_are_computed_again_for_every_loss() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    again = copy.deepcopy(block)
    fsdp._recompute(again)
    values = torch.randn(5, 3)
    assert not differences(gradients(again, values), gradients(block, values))
    assert not differences(dict(again.named_buffers()), dict(block.named_buffers()))


def test_activations_are_computed_again_in_the_modes_of_the_forward_pass() -> None:
    class Doubled(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return 2 * result if func is torch.Tensor.tanh else result

    class Block(nn.Linear):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return super().forward(values).tanh().square()

    torch.manual_seed(0)
    block = Block(3, 4)
    again = copy.deepcopy(block)
    fsdp._recompute(again)
    found = []
    for each in (again, block):
        with Doubled():
            loss = each(torch.ones(2, 3)).sum()
        loss.backward()
        found.append([param.grad for param in each.parameters()])
    assert not differences(*found)
