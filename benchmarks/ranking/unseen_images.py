"""Networks of the unseen tasks that take images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class ResidualCnn(nn.Module):
    """A stem and three basic blocks with BatchNorm, the second with stride 2, (N, 3, 8, 8)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolved(3, 12), nn.ReLU())
        self.bodies = nn.ModuleList(
            nn.Sequential(_convolved(wide, out, stride), nn.ReLU(), _convolved(out, out))
            for wide, out, stride in ((12, 12, 1), (12, 24, 2), (24, 24, 1))
        )
        self.shortcut = _convolved(12, 24, 2, size=1)
        self.head = nn.Linear(24, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.stem(images)
        for at, body in enumerate(self.bodies):
            skipped = self.shortcut(hidden) if at == 1 else hidden
            hidden = functional.relu(body(hidden) + skipped)
        return self.head(hidden.mean((2, 3)))


class ClassTokenVit(nn.Module):
    """Patches of 2 x 2, a class token, learned positions, two pre-norm blocks, (N, 3, 8, 8).

    Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, section 3.1.
    """

    def __init__(self, classes: int, wide: int = 24) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, wide, 2, stride=2)
        self.summary = nn.Parameter(torch.zeros(1, 1, wide))
        self.place = nn.Parameter(torch.randn(1, 17, wide) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                wide, 3, 4 * wide, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in "12"
        )
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        summary = self.summary.expand(len(tokens), -1, -1).to(tokens.dtype)
        tokens = torch.cat([summary, tokens], 1) + self.place
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens[:, 0]))


class MobileNet(nn.Module):
    """Two inverted residual blocks with BatchNorm, hardswish and squeeze-excitation, (N, 3, 8, 8).

    Howard et al., Searching for MobileNetV3, 2019, figure 4.
    """

    def __init__(self, classes: int, wide: int = 12) -> None:
        super().__init__()
        inner = 2 * wide
        self.stem = nn.Sequential(_convolved(3, wide, 2), nn.Hardswish())
        self.expand = nn.ModuleList(_convolved(wide, inner, size=1) for _ in "12")
        self.deep = nn.ModuleList(_convolved(inner, inner, groups=inner) for _ in "12")
        self.excite = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(inner, 8, 1),
                nn.ReLU(),
                nn.Conv2d(8, inner, 1),
                nn.Hardsigmoid(),
            )
            for _ in "12"
        )
        self.project = nn.ModuleList(_convolved(inner, wide, size=1) for _ in "12")
        self.head = nn.Linear(wide, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.stem(images)
        for expand, deep, excite, project in zip(
            self.expand, self.deep, self.excite, self.project, strict=True
        ):
            inner = functional.hardswish(deep(functional.hardswish(expand(hidden))))
            hidden = hidden + project(inner * excite(inner))
        return self.head(hidden.mean((2, 3)))


class Denoiser(nn.Module):
    """Predicts the noise in an image, with GroupNorm and the time step of DDPM, (N, 2, 8, 8).

    The second channel holds the time step, 0 to 999. Ho et al., Denoising Diffusion Probabilistic
    Models, 2020, appendix B.
    """

    def __init__(self, wide: int = 16) -> None:
        super().__init__()
        self.register_buffer("rates", torch.exp(torch.linspace(0, -9, wide // 2)))
        self.time = nn.Sequential(nn.Linear(wide, wide), nn.SiLU(), nn.Linear(wide, 3 * wide))
        self.stem = nn.Conv2d(1, wide, 3, padding=1)
        self.down = nn.Conv2d(wide, wide, 3, stride=2, padding=1)
        self.up = nn.Conv2d(2 * wide, wide, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, wide) for _ in range(3))
        self.head = nn.Conv2d(wide, 1, 3, padding=1)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the noise, (N, 1, 8, 8)."""
        angles = packed[:, 1, 0, :1] * self.rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))[..., None, None].chunk(3, 1)
        high = functional.silu(self.norms[0](self.stem(packed[:, :1])) + time[0])
        low = functional.silu(self.norms[1](self.down(high)) + time[1])
        both = torch.cat([high, functional.interpolate(low, scale_factor=2.0)], 1)
        return self.head(functional.silu(self.norms[2](self.up(both)) + time[2]))


class SuperResolution(nn.Module):
    """EDSR: residual blocks scaled by 0.1 without norms, a pixel shuffle, (N, 3, 4, 4) to 8 x 8.

    Pixels are 0 to 255, as in Lim et al., Enhanced Deep Residual Networks, 2017, section 3.
    """

    def __init__(self, wide: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, wide, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1)
            )
            for _ in range(3)
        )
        self.head = nn.Sequential(nn.Conv2d(wide, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of twice the size."""
        hidden = self.stem(images - 128)
        for block in self.blocks:
            hidden = hidden + 0.1 * block(hidden)
        return self.head(hidden) + 128


class ConvAutoencoder(nn.Module):
    """Strided convolutions to 32 numbers and transposed ones back, with BatchNorm, (N, 3, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            _convolved(3, 16, 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 8, 3, stride=2, padding=1),
            nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images, rebuilt."""
        return self.net(images)


def _convolved(
    wide: int, out: int, stride: int = 1, size: int = 3, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(wide, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))
