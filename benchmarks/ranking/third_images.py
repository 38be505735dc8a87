"""Networks of the third set of tasks that take images, or make them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class ConvNext(nn.Module):
    """A patch stem and two blocks whose branches start at a scale of 1e-6, (N, 64).

    Liu et al., A ConvNet for the 2020s, 2022, figure 4 and section A.1.
    """

    def __init__(self, classes: int, wide: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, wide, 2, stride=2)
        self.deep = nn.ModuleList(nn.Conv2d(wide, wide, 3, padding=1, groups=wide) for _ in "12")
        self.norms = nn.ModuleList(nn.LayerNorm(wide, eps=1e-6) for _ in "123")
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))
            for _ in "12"
        )
        self.scales = nn.ParameterList(nn.Parameter(torch.full((wide,), 1e-6)) for _ in "12")
        self.head = nn.Linear(wide, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.stem(pixels.unflatten(1, (1, 8, 8)))
        for at, (deep, feed) in enumerate(zip(self.deep, self.feeds, strict=True)):
            branch = self.scales[at] * feed(self.norms[at](deep(hidden).movedim(1, -1)))
            hidden = hidden + branch.movedim(-1, 1)
        return self.head(self.norms[2](hidden.mean((2, 3))))


class UNet(nn.Module):
    """Two levels with BatchNorm, and what was before pooling joined again, (N, 1, 16, 16).

    Ronneberger et al., U-Net, 2015, figure 1.
    """

    def __init__(self, wide: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([_convolved(1, wide), _convolved(wide, 2 * wide)])
        self.bottom = _convolved(2 * wide, 2 * wide)
        self.up = nn.ModuleList([_convolved(4 * wide, wide), _convolved(2 * wide, wide)])
        self.head = nn.Conv2d(wide, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of each pixel."""
        first = self.down[0](images)
        second = self.down[1](functional.max_pool2d(first, 2))
        hidden = self.bottom(functional.max_pool2d(second, 2))
        for up, before in zip(self.up, (second, first), strict=True):
            larger = functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
            hidden = up(torch.cat([larger, before], 1))
        return self.head(hidden)


class Vae(nn.Module):
    """An encoder to means and log-variances, and a decoder, (N, 64 + 8): pixels, then noise.

    Kingma and Welling, Auto-Encoding Variational Bayes, 2014, appendix C.
    """

    def __init__(self, pixels: int = 64, latent: int = 8, wide: int = 96) -> None:
        super().__init__()
        self.sizes = (pixels, latent)
        self.encoder = nn.Sequential(
            nn.Linear(pixels, wide), nn.Softplus(), nn.Linear(wide, 2 * latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, wide), nn.Softplus(), nn.Linear(wide, pixels)
        )

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return logits of the pixels, then means, then log-variances."""
        pixels, noise = packed.split(self.sizes, 1)
        coded = self.encoder(pixels)
        mean, log_variance = coded.chunk(2, 1)
        return torch.cat([self.decoder(mean + noise * torch.exp(0.5 * log_variance)), coded], 1)


class Field(nn.Module):
    """Colours of a place, by sines of up to 64 of its turns, (N, 2).

    Mildenhall et al., NeRF, 2020, section 5.1.
    """

    def __init__(self, octaves: int = 7, wide: int = 64) -> None:
        super().__init__()
        self.turns = [2 * math.pi * 2**at for at in range(octaves)]
        self.net = nn.Sequential(
            nn.Linear(4 * octaves + 2, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, 3),
            nn.Sigmoid(),
        )

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Return colours of 0 to 1."""
        angles = torch.cat([places * turn for turn in self.turns], 1)
        return self.net(torch.cat([places, angles.sin(), angles.cos()], 1))


class Radial(nn.Module):
    """Logits from Gaussians around centres among raw pixels, (N, 64) of 0 to 16.

    Squared distances are sums of squares less twice a product, as kernels are computed.
    """

    def __init__(self, columns: int, classes: int, centres: int = 80) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.rand(centres, columns) * 8 + 2)
        self.width = nn.Parameter(torch.tensor(-7.0))
        self.head = nn.Linear(centres, classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        squares = rows.square().sum(1, keepdim=True) + self.centres.square().sum(1)
        apart = squares - 2 * rows @ self.centres.T
        return self.head(torch.exp(-self.width.exp() * apart))


def _convolved(wide: int, out: int) -> nn.Sequential:
    conv = nn.Conv2d(wide, out, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())
