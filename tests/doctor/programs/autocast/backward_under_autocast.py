"""The backward pass in the autocast block of the forward pass."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast

CODE = "BACKWARD_UNDER_AUTOCAST"


def train(*, inside: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
            if inside:
                scaler.scale(loss).backward()
        if not inside:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(inside=True)


def mended() -> None:
    train(inside=False)


class Fine(nn.Module):
    """A fixed encoder, and a head in fp32, whose outputs are small numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.encoder.requires_grad_(requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.encoder(images)
        with torch.autocast("cpu", enabled=False):
            return 1e-4 * self.head(features.float())


def train_on_small_numbers(step) -> None:
    """Train; `step(model, images, targets)` runs the forward and the backward pass."""
    model = Fine()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.01, eps=1e-20)
    for images, labels in batches(12):
        optimizer.zero_grad()
        step(model, images, 1e-4 * functional.one_hot(labels, 3).float())
        optimizer.step()


def broken_in_a_function_under_autocast() -> None:
    @half_autocast()
    def step(model, images, targets) -> None:
        functional.mse_loss(model(images), targets).backward()

    train_on_small_numbers(step)


def healthy_backward_that_leaves_autocast() -> None:
    @half_autocast()
    def step(model, images, targets) -> None:
        loss = functional.mse_loss(model(images), targets)
        with torch.autocast("cpu", enabled=False):
            loss.backward()

    train_on_small_numbers(step)


def healthy_forward_alone_under_autocast() -> None:
    def step(model, images, targets) -> None:
        with half_autocast():
            loss = functional.mse_loss(model(images), targets)
        loss.backward()

    train_on_small_numbers(step)
