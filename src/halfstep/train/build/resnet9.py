"""A small ResNet for images of 32 pixels, which trains in seconds on a GPU: `halfstep:resnet9`.

The ResNets of timm and torchvision shrink images to a quarter before they look at them. This one
is David Page's ("How to train your ResNet", 2018, of the DAWNBench entries): no stem, eight
convolutions, two residual blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class ResNet9(nn.Module):
    """Eight convolutions with BatchNorm, and a linear classifier on the maximum of each channel.

    Args:
        num_classes: The number of logits.
        in_chans: The number of channels of an image.
        channels: The channels of the first convolution and of the three stages, each of which
            halves the image.
        scale: The factor on the logits.
    """

    def __init__(
        self,
        num_classes: int,
        in_chans: int = 3,
        channels: Sequence[int] = (64, 128, 256, 512),
        scale: float = 0.125,
    ) -> None:
        super().__init__()
        first, one, two, three = channels
        self.prep = _convolution(in_chans, first)
        self.layer1 = nn.Sequential(_convolution(first, one), nn.MaxPool2d(2), _Residual(one))
        self.layer2 = nn.Sequential(_convolution(one, two), nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(_convolution(two, three), nn.MaxPool2d(2), _Residual(three))
        self.head = nn.Linear(three, num_classes, bias=False)
        self.scale = scale

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, num_classes) of images (N, in_chans, height, width)."""
        features = self.layer3(self.layer2(self.layer1(self.prep(images))))
        logits: torch.Tensor = self.head(features.amax((2, 3))) * self.scale
        return logits


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(channels, channels), _convolution(channels, channels)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = images + self.branch(images)
        return added


def _convolution(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()
    )
