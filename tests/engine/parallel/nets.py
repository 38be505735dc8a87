"""What the processes train, and the same for one process on the joined batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d
from torch.optim import SGD

from halfstep.engine import Engine
from halfstep.recipe import LossScale, Recipe, recipe

JOINED = 16
"""Samples of all processes together."""


class SmallAlexNet(nn.Module):
    """Convolutions, pooling and two linear layers; takes (n, 1, 12, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU()
        )
        self.classifier = nn.Sequential(nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(max_pool2d(self.features(images), 2).flatten(1))


class Block(nn.Module):
    """Two convolutions with batch norm and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = self.norm1(self.conv1(images)).relu()
        return (self.norm2(self.conv2(inner)) + images).relu()


class SmallResNet(nn.Module):
    """Two residual blocks, and a layer norm before the classifier; takes (n, 1, 12, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.stem(images)).mean((2, 3))))


NETS = {"alexnet": SmallAlexNet, "resnet": SmallResNet}

RECIPES = {
    "fp64": Recipe(name="fp64"),
    "fp64-scaled": Recipe(name="fp64-scaled", loss_scale=LossScale(init=1024.0)),
    **{name: recipe(name) for name in ("fp32", "bf16", "half-bn32")},
    # A scale at which nothing overflows: a process's mean gradient is larger than the joined one.
    **{
        name: recipe({"base": name, "name": name, "loss_scale": {"init": 4096.0}})
        for name in ("fp16", "o2")
    },
}


def net(kind: str, name: str = "fp32", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = NETS[kind]()
    return model.double() if name.startswith("fp64") else model


def batches(count: int, name: str = "fp32") -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Joined batches whose classes can be learned."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 1, 12, 12, generator=generator)
    made = []
    for _ in range(count):
        labels = torch.randint(0, 10, (JOINED,), generator=generator)
        noise = torch.randn(JOINED, 1, 12, 12, generator=generator)
        images = patterns[labels] + 0.3 * noise
        made.append((images.double() if name.startswith("fp64") else images, labels))
    return made


def share(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    return tensor.chunk(world)[rank]


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.02, momentum=0.9)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The value of a tensor that may be sharded."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def gradients(engine: Engine) -> list[torch.Tensor]:
    """The true gradients of an open window, fp64."""
    held = [whole(param.grad).double() for param in engine.bare_model.parameters()]
    return [grad / engine.loss_scale for grad in held]


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: whole(value) for name, value in engine.bare_model.state_dict().items()}


def backward(engine: Engine, images: torch.Tensor, labels: torch.Tensor, **how) -> torch.Tensor:
    with engine.autocast():
        outputs = engine.model(images)
        if outputs.dtype != torch.float64:
            outputs = outputs.float()
        loss = cross_entropy(outputs, labels)
    engine.backward(loss, **how)
    return loss.detach()


def follow(engine: Engine, name: str, steps: int, rank: int = 0, world: int = 1) -> dict:
    """Train; return the first gradients, the last weights and what was reported."""
    first, norms = [], []
    for images, labels in batches(steps, name):
        backward(engine, share(images, rank, world), share(labels, rank, world))
        if not first:
            first = gradients(engine)
        result = engine.step()
        assert result.stepped
        norms.append(result.grad_norm)
    return {"first": first, "weights": weights(engine), "norms": norms, "scale": engine.loss_scale}


def alone(kind: str, name: str, steps: int, **settings) -> dict:
    """One process on the joined batches."""
    model = net(kind, name)
    with Engine(model, sgd(model), recipe=RECIPES[name], **settings) as engine:
        return follow(engine, name, steps)
