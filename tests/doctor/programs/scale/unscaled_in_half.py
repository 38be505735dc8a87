"""Gradients for fp32 master weights are divided by the loss scale while they are in fp16."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "UNSCALED_IN_HALF"
SCALE = 2.0**16


def train(gradient_of, *, weight: float = 1e-7, count: int = 6) -> None:
    """Train; `gradient_of(parameter)` is the gradient of its master weight, unscaled."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    parameters = [*model.parameters()]
    masters = [each.detach().float().requires_grad_() for each in parameters]
    optimizer = torch.optim.Adam(masters, lr=0.01, eps=1e-12)
    for images, labels in batches(count):
        loss = weight * functional.cross_entropy(model(images.half()).float(), labels)
        (loss * SCALE).backward()
        for master, parameter in zip(masters, parameters, strict=True):
            master.grad = gradient_of(parameter)
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters, strict=True):
                parameter.copy_(master)


def broken() -> None:
    train(lambda parameter: (parameter.grad / SCALE).float())


def mended() -> None:
    train(lambda parameter: parameter.grad.float() / SCALE)


def broken_by_a_product() -> None:
    train(lambda parameter: (parameter.grad * (1 / SCALE)).float())


def broken_in_place() -> None:
    train(lambda parameter: parameter.grad.div_(SCALE).float())


def healthy_gradients_that_are_large_enough() -> None:
    train(lambda parameter: (parameter.grad / SCALE).float(), weight=1.0)


def train_with_hooks(change, *, weight: float = 1e-7, count: int = 6) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(change)
    masters = [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=0.01, eps=1e-12)
    for images, labels in batches(count):
        loss = weight * functional.cross_entropy(model(images.half()).float(), labels)
        (loss * SCALE).backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


def divide(parameter) -> None:
    parameter.grad.div_(SCALE)


def broken_in_a_hook() -> None:
    train_with_hooks(divide)


def broken_in_a_hook_that_leaves_some() -> None:
    train_with_hooks(divide, weight=3e-6)


def healthy_hook_with_gradients_that_are_large_enough() -> None:
    train_with_hooks(divide, weight=1.0)


def healthy_hook_that_masks() -> None:
    def mask(parameter) -> None:
        parameter.grad.mul_((torch.arange(parameter.numel()) % 2).view_as(parameter))

    train_with_hooks(mask, weight=1e-3)


def healthy_hook_that_freezes() -> None:
    def freeze(parameter) -> None:
        if parameter.ndim == 1:
            parameter.grad.zero_()

    train_with_hooks(freeze, weight=1e-3)


def train_by_hand(unscale, *, weight: float = 1e-7) -> None:
    """No optimizer makes the steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    masters = [each.detach().float() for each in model.parameters()]
    for images, labels in batches(6):
        loss = weight * functional.cross_entropy(model(images.half()).float(), labels)
        (loss * SCALE).backward()
        gradients = unscale([each.grad for each in model.parameters()])
        with torch.no_grad():
            torch._foreach_sub_(masters, [each.float() for each in gradients])
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
                parameter.grad = None


def divided_together(gradients):
    torch._foreach_mul_(gradients, 1 / SCALE)
    return gradients


def broken_without_an_optimizer() -> None:
    train_by_hand(divided_together)


def healthy_without_an_optimizer() -> None:
    train_by_hand(lambda gradients: [each.float() / SCALE for each in gradients])
