"""Small models, and steps as programs write them."""

from __future__ import annotations

import torch
from torch import nn

from halfstep.apex import amp


class Net(nn.Module):
    """A convolution, both kinds of batch norm, a layer norm and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.plain_bn = nn.BatchNorm2d(4, affine=False)
        self.ln = nn.LayerNorm([4, 6, 6])
        self.fc = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x):
        x = self.ln(self.plain_bn(self.bn(self.conv(x))))
        return self.fc(torch.relu(x).flatten(1))


class Weights(nn.Module):
    """Multiplies by weights that a test can set by hand; the gradient is the input."""

    def __init__(self, *values):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values))

    def forward(self, x):
        return (self.weight * x).sum()


def batch():
    return torch.randn(4, 1, 8, 8)


def backward(loss, optimizer, **options):
    with amp.scale_loss(loss, optimizer, **options) as scaled:
        scaled.backward()


def overflow(model, optimizer, **options):
    """One step whose gradients overflow."""
    backward(model(torch.tensor(float("inf"))), optimizer, **options)
    optimizer.step()


def scale(index=0):
    return amp._amp_state.loss_scalers[index].loss_scale()
