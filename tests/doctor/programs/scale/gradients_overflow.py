"""A constant loss scale of the loop's own that is too high, and gradients that nothing checks."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast

CODE = "GRADIENTS_OVERFLOW"


def train(scale: float, *, restores: bool = False) -> None:
    model = classifier()
    good = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        (loss * scale).backward()
        for each in model.parameters():
            each.grad /= scale
        optimizer.step()
    if restores:
        model.load_state_dict(good)


def broken() -> None:
    train(2.0**20)


def broken_until_the_loop_restores_good_weights() -> None:
    train(2.0**20, restores=True)


def mended() -> None:
    train(1024.0)


def broken_by_the_weight_of_a_loss() -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        (3e6 * functional.cross_entropy(outputs.float(), labels)).backward()
        optimizer.step()


def healthy_with_a_check() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scale = 2.0**20
    for images, labels in batches(12):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        (loss * scale).backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            scale /= 4
            continue
        for each in model.parameters():
            each.grad /= scale
        optimizer.step()


class Skipping(torch.optim.SGD):
    """SGD with its own loss scale, which skips steps whose gradients overflow."""

    scale = 2.0**20

    @torch.no_grad()
    def step(self, closure=None) -> None:
        gradients = [each.grad for each in self.param_groups[0]["params"]]
        if not all(each.isfinite().all() for each in gradients):
            self.scale /= 4
            return
        for each in gradients:
            each.div_(self.scale)
        super().step(closure)


def healthy_with_an_optimizer_that_skips() -> None:
    model = classifier()
    optimizer = Skipping(model.parameters(), lr=0.05)
    for images, labels in batches(12):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        (loss * optimizer.scale).backward()
        optimizer.step()


def broken_in_the_derivative_of_a_temperature() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            logits = functional.normalize(model(images), dim=1).half() / 0.07
            loss = functional.cross_entropy(logits.float(), labels)
        (loss * 2.0**18).backward()
        for each in model.parameters():
            each.grad /= 2.0**18
        optimizer.step()


def train_by_autograd_grad(reduction: str, weight: float = 1.0) -> None:
    model = classifier()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for images, labels in batches(4):
        with half_autocast():
            outputs = model(images)
        loss = functional.cross_entropy(outputs.float(), labels, reduction=reduction) * weight
        for each, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            each.grad = gradient / weight
        optimizer.step()


def broken_in_gradients_of_autograd_grad() -> None:
    train_by_autograd_grad("sum", weight=1e6)


def healthy_gradients_of_autograd_grad() -> None:
    train_by_autograd_grad("mean", weight=64.0)


def train_by_hand(weight: float, *, count: int = 4, checks: bool = False) -> None:
    """Train without an optimizer."""
    model = classifier()
    for images, labels in batches(count):
        model.zero_grad()
        with half_autocast():
            outputs = model(images)
        (functional.cross_entropy(outputs.float(), labels) * weight).backward()
        if checks and not all(each.grad.isfinite().all() for each in model.parameters()):
            weight /= 4
            continue
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(0.05 * each.grad / weight)


def broken_in_updates_by_hand() -> None:
    train_by_hand(3e6)


def healthy_updates_by_hand() -> None:
    train_by_hand(64.0)


def healthy_updates_by_hand_after_a_check() -> None:
    train_by_hand(2.0**20, count=12, checks=True)
