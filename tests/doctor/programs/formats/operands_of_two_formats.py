"""A model that was cast to bf16, and batches that were not."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, half_autocast

CODE = "OPERANDS_OF_TWO_FORMATS"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def train(*, cast: bool) -> None:
    model = network().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(3):
        optimizer.zero_grad()
        inputs = images.bfloat16() if cast else images
        functional.cross_entropy(model(inputs).float(), labels).backward()
        optimizer.step()


def broken() -> None:
    train(cast=False)


def mended() -> None:
    train(cast=True)


def train_under_autocast(finish) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            features = model[1](model[0](images))
            outputs = finish(model, features)
        functional.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()


def broken_where_autocast_is_off() -> None:
    def finish(model: nn.Sequential, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return model[2](features)

    train_under_autocast(finish)


def broken_by_a_write_to_a_buffer() -> None:
    def finish(model: nn.Sequential, features: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(len(features), 16)
        buffer[torch.arange(len(features))] = features
        return model[2](buffer)

    train_under_autocast(finish)


def broken_by_a_scatter() -> None:
    def finish(model: nn.Sequential, features: torch.Tensor) -> torch.Tensor:
        index = torch.zeros_like(features, dtype=torch.long)
        return model[2](torch.zeros(len(features), 16).scatter(1, index, features))

    train_under_autocast(finish)


def broken_by_a_product_outside_autocast() -> None:
    weight = torch.ones(3, 3)
    model = network()
    for images, labels in batches(3):
        with half_autocast():
            outputs = model(images)
        functional.cross_entropy(outputs @ weight, labels).backward()
