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


class OwnNorm(nn.Module):
    """A batch norm of one's own, whose statistics are in a chosen format."""

    def __init__(self, dtype: torch.dtype, *, batch: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift, self.head, self.batch = nn.Linear(6, 16), nn.Linear(16, 3), batch
        self.register_buffer("mean", torch.zeros(16, dtype=dtype))
        self.register_buffer("variance", torch.ones(16, dtype=dtype))

    def forward(self, images):
        lifted = self.lift(images).bfloat16()
        normed = functional.batch_norm(lifted, self.mean, self.variance, training=self.batch)
        return self.head(normed.float()).bfloat16()


def broken_in_a_norm_of_one_s_own() -> None:
    train(Cast(OwnNorm(torch.bfloat16)))


def healthy_norm_of_one_s_own() -> None:
    train(Cast(OwnNorm(torch.float32)))


def healthy_fixed_statistics() -> None:
    train(Cast(OwnNorm(torch.bfloat16, batch=False)))


class Cast(nn.Module):
    """A model that gets bf16 inputs, and computes in fp32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner(images.float())
