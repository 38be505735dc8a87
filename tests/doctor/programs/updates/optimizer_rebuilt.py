"""Each epoch of a few steps builds its optimizer anew, so the momentum never builds up."""

import copy

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "OPTIMIZER_REBUILT"


def sgd(model: nn.Module, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)


def epoch_of(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, count: int = 3) -> None:
    for images, labels in batches(count, seed=seed):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    model = classifier()
    for epoch in range(6):
        epoch_of(model, sgd(model), epoch)


def mended() -> None:
    model = classifier()
    optimizer = sgd(model)
    for epoch in range(6):
        epoch_of(model, optimizer, epoch)


def broken_with_adam_and_evaluations() -> None:
    model = classifier()
    for epoch in range(8):
        model.train()
        epoch_of(model, torch.optim.AdamW(model.parameters(), lr=0.01), epoch)
        model.eval()
        with torch.no_grad():
            for images, _ in batches(1):
                model(images)


def healthy_without_momentum() -> None:
    model = classifier()
    for epoch in range(6):
        epoch_of(model, sgd(model, 0.0), epoch)


def healthy_inner_loops_that_begin_anew() -> None:
    """The inner loop of Reptile begins from the outer weights, which move a bit after each."""
    model = classifier()
    for task in range(6):
        outer = copy.deepcopy(model.state_dict())
        epoch_of(model, sgd(model), task)
        inner = model.state_dict()
        with torch.no_grad():
            moved = {
                name: each + 0.5 * (inner[name] - each) if each.is_floating_point() else each
                for name, each in outer.items()
            }
        model.load_state_dict(moved)


def healthy_phases_of_many_steps() -> None:
    model = classifier()
    for epoch in range(5):
        epoch_of(model, sgd(model), epoch, count=15)
