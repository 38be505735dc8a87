"""An image classifier under Apex's amp on 8x8 digits, structured like Apex's ImageNet example.

    python -m halfstep.apex examples/apex/imagenet.py --opt-level O2 --loss-scale dynamic

The program is written for NVIDIA Apex and does not import halfstep. Options of amp are strings from
the command line, checkpoints contain the state of amp, and `torchrun` starts it in several
processes. With `--overflow-at 3`, the gradients overflow at step 3.
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from apex import amp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as programs write it


@dataclass
class Step:
    """The printed values of one step: the loss, and the loss scale after the step."""

    loss: float
    scale: float


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features, at 1/stride of the resolution."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A ResNet small enough for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(1, 16, 1), Block(16, 32, 2))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of ten classes."""
        return self.fc(self.blocks(x).mean((2, 3)))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--opt-level", type=str, default="O1")
    parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=None, help="at most so many an epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--checkpoint", type=Path, default=None, help="written after each epoch")
    parser.add_argument("--resume", type=Path, default=None, help="a checkpoint to go on from")
    parser.add_argument("--overflow-at", type=int, nargs="*", default=[])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> list[Step]:
    """Train and validate, print one line per step, and return the printed values."""
    args = parse(argv)
    device = torch.device(args.device)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(scans.target)
    train_images, train_labels = images[:1500], labels[:1500]
    val_images, val_labels = images[1500:].to(device), labels[1500:].to(device)

    model = ResNet().to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32,
        loss_scale=args.loss_scale,
    )
    if distributed:
        from apex.parallel import DistributedDataParallel as DDP  # noqa: N817  # as programs do

        model = DDP(model, delay_allreduce=True)

    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device, weights_only=True)
        start = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        amp.load_state_dict(checkpoint["amp"])

    steps: list[Step] = []
    for epoch in range(start, args.epochs):
        model.train()
        order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(epoch))
        batches = [b for b in order.split(args.batch_size) if len(b) == args.batch_size]
        for number, places in enumerate(batches[: args.steps]):
            output = model(train_images[places].to(device))
            loss = criterion(output, train_labels[places].to(device))
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                if len(steps) in args.overflow_at:
                    scaled_loss = scaled_loss * math.inf  # noqa: PLW2901
                scaled_loss.backward()
            optimizer.step()
            scales = [scaler["loss_scale"] for scaler in amp.state_dict().values()]
            steps.append(Step(loss.item(), scales[0]))
            print(f"Epoch: [{epoch}][{number}] Loss {steps[-1].loss:.4f} Scale {scales[0]}")
        model.eval()
        with torch.no_grad():
            correct = (model(val_images).argmax(1) == val_labels).float().mean().item()
        print(f" * Prec@1 {100 * correct:.2f}")
        if args.checkpoint:
            state = {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "amp": amp.state_dict(),
            }
            torch.save(state, args.checkpoint)
    if distributed:
        torch.distributed.destroy_process_group()
    return steps


if __name__ == "__main__":
    main()
