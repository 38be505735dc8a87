"""A loop evaluates after each epoch, and never calls `train()` again."""

import torch
from torch import nn

from doctor.loops import batches, classifier, half_autocast, loss_of

CODE = "LEFT_IN_EVALUATION_MODE"


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad(), half_autocast():
        for images, _ in batches(2):
            model(images)


def train(model: nn.Module, mode_of, *, called: nn.Module | None = None, epochs: int = 3) -> None:
    """Train for some epochs; `mode_of(epoch)` is the mode at the start, or None to leave it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for epoch in range(epochs):
        mode = mode_of(epoch)
        if mode is not None:
            model.train(mode)
        for images, labels in batches(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(called or model, images, labels)).backward()
            scaler.step(optimizer)
            scaler.update()
        evaluate(model)


def broken() -> None:
    train(classifier(), lambda epoch: None)


def mended() -> None:
    train(classifier(), lambda epoch: True)


def broken_with_dropout_in_a_wrapped_model() -> None:
    """Only the wrapped model changes its mode, and the wrapper is called."""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.module(images)

    class Dropped(nn.Sequential):
        pass

    torch.manual_seed(0)
    model = Dropped(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    wrapper = Wrapper(model)
    wrapper.training = False  # as of a wrapper that is not used as a module
    train(model, lambda epoch: None, called=wrapper)


def healthy_in_evaluation_mode_from_the_start() -> None:
    train(classifier(), lambda epoch: False)


def healthy_that_freezes_its_norms_in_the_last_epoch() -> None:
    train(classifier(), lambda epoch: epoch < 2)


def healthy_without_modules_that_change() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Dropout(0.0), nn.Linear(16, 3))
    train(model, lambda epoch: None)


def healthy_evaluation_at_the_end() -> None:
    train(classifier(), lambda epoch: None, epochs=1)


def healthy_last_step_in_evaluation_mode() -> None:
    """Only one step follows the evaluation, so it may be a test of the loop."""
    model = classifier()
    train(model, lambda epoch: None, epochs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(1):
        loss_of(model, images, labels).backward()
        optimizer.step()


def healthy_adversary_in_evaluation_mode() -> None:
    """Each step computes a perturbation in evaluation mode before it trains."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for images, labels in batches(4):
            images.requires_grad_()
            model.eval()
            loss = nn.functional.cross_entropy(model(images), labels)
            (direction,) = torch.autograd.grad(loss, images)
            model.train()
            optimizer.zero_grad()
            given = (images + 0.01 * direction.sign()).detach()
            nn.functional.cross_entropy(model(given), labels).backward()
            optimizer.step()
        if epoch == 0:
            evaluate(model)
