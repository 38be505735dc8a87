"""A bf16 model that was cast together with its batch norm."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "NORM_STATISTICS_IN_HALF"


def train(model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        optimizer.step()


def broken() -> None:
    train(classifier().bfloat16())


def mended() -> None:
    model = classifier().bfloat16()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.float()
    train(model)
