"""Two models, two optimizers and three losses under Apex's amp: a DCGAN on 8x8 digits.

    python -m halfstep.apex examples/apex/dcgan.py --opt-level O1

The program is written for NVIDIA Apex and does not import halfstep. With `--overflow-at 3`, the
gradients of the second loss overflow at step 3, and only the loss scale of this loss is lowered.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from apex import amp
from sklearn.datasets import load_digits
from torch import nn, optim

NOISE = 16


@dataclass
class Step:
    """The printed values of one step: losses, and their loss scales after the step."""

    loss_d: float
    loss_g: float
    scales: list[float]


class Generator(nn.Module):
    """Draws an image of shape (1, 8, 8) from noise of shape (16, 1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(NOISE, 32, 4, 1, 0, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Return the images."""
        return self.main(noise)


class Discriminator(nn.Module):
    """Returns a logit: whether an image is real."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 32, 3, 1, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(32, 1, 4, 1, 0, bias=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one logit per image."""
        return self.main(images).view(-1)


def init_weights(module: nn.Module) -> None:
    """Initialise as in Radford et al. (arXiv:1511.06434)."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opt-level", default="O1", help="O0, O1, O2 or O3")
    parser.add_argument("--loss-scale", default=None, help="dynamic, or a number")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--overflow-at", type=int, nargs="*", default=[])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> list[Step]:
    """Train, print one line per step, and return the printed values."""
    args = parse(argv)
    torch.manual_seed(0)
    device = torch.device(args.device)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1

    netG = Generator().to(device)  # noqa: N806  # the names of the paper's programs
    netD = Discriminator().to(device)  # noqa: N806
    netG.apply(init_weights)
    netD.apply(init_weights)
    criterion = nn.BCEWithLogitsLoss()
    # Adam's usual eps of 1e-8 is zero in fp16, in which O3 keeps its state.
    adam = {"lr": args.lr, "betas": (0.5, 0.999), "eps": 1e-3}
    optimizerD = optim.Adam(netD.parameters(), **adam)  # noqa: N806
    optimizerG = optim.Adam(netG.parameters(), **adam)  # noqa: N806

    [netD, netG], [optimizerD, optimizerG] = amp.initialize(  # noqa: N806
        [netD, netG],
        [optimizerD, optimizerG],
        opt_level=args.opt_level,
        loss_scale=args.loss_scale,
        num_losses=3,
    )

    steps = []
    for step in range(args.steps):
        netD.zero_grad()
        real = images[torch.randint(len(images), (args.batch_size,))].to(device)
        label = torch.ones(args.batch_size, device=device)
        errD_real = criterion(netD(real), label)  # noqa: N806
        with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:  # noqa: N806
            errD_real_scaled.backward()

        fake = netG(torch.randn(args.batch_size, NOISE, 1, 1).to(device))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()), label)  # noqa: N806
        with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:  # noqa: N806
            if step in args.overflow_at:
                errD_fake_scaled = errD_fake_scaled * math.inf  # noqa: N806, PLW2901
            errD_fake_scaled.backward()
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)  # noqa: N806
        with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:  # noqa: N806
            errG_scaled.backward()
        optimizerG.step()

        scales = [scaler["loss_scale"] for scaler in amp.state_dict().values()]
        steps.append(Step(errD_real.item() + errD_fake.item(), errG.item(), scales))
        print(
            f"[{step}/{args.steps}] Loss_D: {steps[-1].loss_d:.4f} Loss_G: {steps[-1].loss_g:.4f} "
            f"scales: {scales}"
        )
    return steps


if __name__ == "__main__":
    main()
