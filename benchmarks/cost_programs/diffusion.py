"""A diffusion model as diffusers' example trains it: a U-Net, Accelerate-like steps, an EMA."""

from __future__ import annotations

import copy
import math
import sys

import torch
from clock import mark
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
BATCH, SIZE, TIMES = 8, 32, 100


class Images(Dataset):
    """Images of coloured bars, augmented."""

    def __len__(self) -> int:
        return BATCH * 30

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        draws = torch.Generator().manual_seed(number)
        image = torch.zeros(3, SIZE, SIZE)
        at = int(torch.randint(0, SIZE - 8, (1,), generator=draws))
        image[:, :, at : at + 8] = torch.rand(3, 1, 1, generator=draws)
        if torch.rand(1) < 0.5:
            image = image.flip(-1)
        return {"input": (image - 0.5) / 0.5}


class ResBlock(nn.Module):
    """A residual block with an embedding of the time."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(8, given), nn.Conv2d(given, made, 3, padding=1)
        self.time = nn.Linear(128, made)
        self.norm_2, self.conv_2 = nn.GroupNorm(8, made), nn.Conv2d(made, made, 3, padding=1)
        self.skip = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        y = self.conv_1(functional.silu(self.norm_1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv_2(functional.silu(self.norm_2(y)))


class UNet(nn.Module):
    """A U-Net of three resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128))
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.ModuleList([ResBlock(16, 16), ResBlock(16, 32), ResBlock(32, 32)])
        self.middle = nn.ModuleList([ResBlock(32, 32), ResBlock(32, 32)])
        self.up = nn.ModuleList([ResBlock(64, 32), ResBlock(64, 16), ResBlock(32, 16)])
        self.leave = nn.Sequential(nn.GroupNorm(8, 16), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Return the predicted noise."""
        angles = times[:, None] * torch.exp(-math.log(10_000) * torch.arange(16) / 16)
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, kept = self.enter(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        for block in self.middle:
            x = block(x, t)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], dim=1), t)
        return self.leave(x)


class Noise:
    """The schedule of noise, with a function for each of its uses."""

    def __init__(self) -> None:
        self.products = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES), dim=0)

    def add(self, clean: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Return images with noise."""
        share = self.products[times] ** 0.5
        rest = (1 - self.products[times]) ** 0.5
        share, rest = share.flatten(), rest.flatten()
        while len(share.shape) < len(clean.shape):
            share, rest = share.unsqueeze(-1), rest.unsqueeze(-1)
        return share * clean + rest * noise

    def step(self, found: torch.Tensor, time: int, x: torch.Tensor) -> torch.Tensor:
        """Return the images one time earlier."""
        product = self.products[time]
        before = self.products[time - 1] if time > 0 else torch.tensor(1.0)
        beta = 1 - product / before
        clean = ((x - (1 - product) ** 0.5 * found) / product**0.5).clamp(-1, 1)
        mean = (
            before**0.5 * beta / (1 - product) * clean
            + (product / before) ** 0.5 * (1 - before) / (1 - product) * x
        )
        if time == 0:
            return mean
        deviation = (beta * (1 - before) / (1 - product)).clamp(min=1e-20) ** 0.5
        return mean + deviation * torch.randn_like(x)


def main() -> None:
    """Train for the steps of the command line, and sample after each epoch."""
    mark("train")
    torch.manual_seed(0)
    model, noises = UNet(), Noise()
    average = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.95, 0.999), weight_decay=1e-6
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda n: min(1.0, (n + 1) / 10) * 0.5 * (1 + math.cos(math.pi * n / (STEPS + 1))),
    )
    loader, taken = DataLoader(Images(), BATCH, shuffle=True), 0
    while taken < STEPS:
        model.train()
        for batch in loader:
            clean = batch["input"].to(torch.float32)
            noise = torch.randn(clean.shape)
            times = torch.randint(0, TIMES, (len(clean),)).long()
            noisy = noises.add(clean, noise, times)
            with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                found = model(noisy, times)
            loss = functional.mse_loss(found.float(), noise.float())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            taken += 1
            decay = min(0.999, (1 + taken) / (10 + taken))
            with torch.no_grad():
                for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                    mine.sub_((1 - decay) * (mine - its))
            if taken % 10 == 0:
                print(taken, loss.detach().item(), scheduler.get_last_lr()[0])
            if taken == STEPS:
                break
        with torch.no_grad():
            x = torch.randn(4, 3, SIZE, SIZE)
            for time in reversed(range(0, TIMES, 5)):
                x = noises.step(average(x, torch.full((4,), time)), time, x)
            print((x / 2 + 0.5).clamp(0, 1).mean().item())
    mark("end")


main()
