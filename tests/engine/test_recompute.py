"""Blocks that compute their activations again in the backward: nothing but memory and time changes.

What processes check of them is in `parallel/checks_fsdp.py`.
"""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from engine.tiny import differences
from halfstep.engine import Engine
from halfstep.engine.recompute import Recomputed, recompute

TINY = {
    "resnet18": {"layers": [1, 2, 1, 1], "channels": [8, 8, 8, 8]},
    "vit_tiny_patch16_224": {"embed_dim": 16, "depth": 3, "num_heads": 2, "img_size": 32},
    "convnext_tiny": {"depths": [2, 1, 1, 1], "dims": [8, 8, 8, 8]},
    "densenet121": {"growth_rate": 4, "block_config": (2, 2)},
}


def tiny(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=4, **TINY[name])


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
    recompute(again, [again])
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
    recompute(again, [again])
    found = []
    for each in (again, block):
        with Doubled():
            loss = each(torch.ones(2, 3)).sum()
        loss.backward()
        found.append([param.grad for param in each.parameters()])
    assert not differences(*found)


@pytest.mark.parametrize(
    ("name", "block", "count"),
    [
        ("resnet18", "BasicBlock", 5),
        ("vit_tiny_patch16_224", "Block", 3),
        ("convnext_tiny", "ConvNeXtBlock", 5),
        ("densenet121", "DenseLayer", 4),
    ],
)
def test_blocks_of_a_model_keep_their_inputs_alone_and_learn_the_same(name, block, count) -> None:
    kept, weights = [], []
    for again in (False, True):
        model = tiny(name)
        if again:
            recompute(model)
            found = [type(m).__name__ for m in model.modules() if isinstance(m, Recomputed)]
            assert found == [f"Recomputed{block}"] * count
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saved: list[torch.Tensor] = []
        with Engine(model, optimizer, recipe="fp32") as engine:
            for _ in range(2):
                saved.clear()
                images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
                keep = saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t)
                with engine.autocast(), keep:
                    loss = engine.model(images).square().sum()
                engine.backward(loss)
                engine.step()
            kept.append(len(saved))
        weights.append(model.state_dict())
    assert not differences(*weights)
    assert kept[1] < kept[0] / 2


def test_dropout_is_the_same_when_computed_again() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh())
    again = copy.deepcopy(block)
    recompute(again, [again])
    found = []
    for each in (block, again):
        torch.manual_seed(1)
        found.append(gradients(each, torch.ones(5, 3)))
    assert not differences(*found)


def test_evaluation_computes_nothing_twice() -> None:
    block = nn.Sequential(nn.Linear(3, 4))
    recompute(block, [block])
    with torch.inference_mode():
        assert block(torch.ones(2, 3)).shape == (2, 4)


def test_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="no blocks of several layers"):
        recompute(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)))


def test_block_that_changes_its_input_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.SiLU(inplace=True), nn.Linear(3, 3)))
    recompute(model, [model[1]])
    with pytest.raises(ValueError, match="Sequential changes its input in place"):
        model(torch.ones(2, 3))
