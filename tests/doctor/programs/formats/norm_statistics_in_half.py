"""A bf16 model that was cast together with its batch norm."""

import copy

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


def broken_by_a_variance_above_fp16() -> None:
    model = classifier().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(4000 * images.half()).float(), labels).backward()
        optimizer.step()
    exact = copy.deepcopy(model).float().eval()  # has the overflowed variance too
    with torch.no_grad():
        for images, _ in batches(2):
            exact(images)
