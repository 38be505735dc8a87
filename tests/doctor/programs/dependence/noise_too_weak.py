"""A diffusion model adds the noise of one step, and not that of all steps so far."""

import torch
from torch import nn
from torch.nn import functional

CODE = "NOISE_TOO_WEAK"
STEPS = 50
ALPHA = 1 - torch.linspace(1e-3, 0.2, STEPS)
BARS = ALPHA.cumprod(0)


class Denoiser(nn.Module):
    """Predicts the noise in a point."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.levels = nn.Embedding(STEPS, 8)
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 4))

    def forward(self, noisy: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([noisy, self.levels(steps)], 1))


def train(kept, *, target=lambda noise, _: noise, levels: int = STEPS) -> None:
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        points = torch.randint(2, (256, 4), generator=generator) * 2.0 - 1
        steps = torch.randint(levels, (256,), generator=generator) * (STEPS - 1) // (levels - 1)
        noise = torch.randn(points.shape, generator=generator)
        share = kept[steps][:, None]
        noisy = share.sqrt() * points + (1 - share).sqrt() * noise
        loss = functional.mse_loss(model(noisy, steps), target(noise, points))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(ALPHA)


def mended() -> None:
    train(BARS)


def broken_too_few_steps_of_a_long_schedule() -> None:
    train((1 - torch.linspace(1e-4, 0.02, STEPS)).cumprod(0))


def healthy_cosine() -> None:
    train((torch.linspace(0, 1.55, STEPS).cos() ** 2).clamp(min=1e-3))


def healthy_points_as_targets() -> None:
    train(ALPHA, target=lambda _, points: points)


def healthy_residual_of_a_denoiser() -> None:
    """A denoiser for a camera's noise gets no levels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        points = torch.randint(2, (256, 4)) * 2.0 - 1
        noise = torch.randn(points.shape)
        loss = functional.mse_loss(model(points + 0.3 * noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_two_cameras() -> None:
    """A denoiser is told which of two cameras has made an image; neither is mostly noise."""
    kept = torch.full((STEPS,), 0.8)
    kept[: STEPS // 2] = 0.9
    train(kept, levels=2)
