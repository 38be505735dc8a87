"""A small network whose layers FP8 takes, and steps of an engine on it."""

from __future__ import annotations

import torch
from torch import nn

from halfstep import Engine


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))


def engine_of(model: nn.Module, name="fp8", lr: float = 0.1, **settings) -> Engine:
    return Engine(model, torch.optim.SGD(model.parameters(), lr), recipe=name, **settings)


def train(engine: Engine, inputs: torch.Tensor) -> float:
    with engine.autocast():
        loss = engine.model(inputs).float().square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()
