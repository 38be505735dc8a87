"""The hook that halves the gradients of a part is registered anew in each epoch."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "HOOKS_PILE_UP"


def halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 0.5


def train(epoch_begins, *, epochs: int = 4) -> None:
    """Train; `epoch_begins(model, epoch)` runs before each epoch."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        epoch_begins(model, epoch)
        for images, labels in batches(3, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


def damp(model: nn.Module, hook=halved) -> list:
    return [each.register_hook(hook) for each in model[0].parameters()]


def broken() -> None:
    train(lambda model, epoch: damp(model))


def mended() -> None:
    train(lambda model, epoch: damp(model) if epoch == 0 else None)


def broken_in_a_layer() -> None:
    """Noise is added to the features once more in each epoch."""

    def begin(model, epoch) -> None:
        model[2].register_forward_hook(lambda layer, given, made: made * 0.9)

    train(begin)


def broken_in_the_backward_of_a_layer() -> None:
    def begin(model, epoch) -> None:
        model[3].register_full_backward_hook(lambda layer, its, grads: (its[0] * 0.5,))

    train(begin)


def healthy_hooks_that_are_removed() -> None:
    handles = []

    def begin(model, epoch) -> None:
        while handles:
            handles.pop().remove()
        handles.extend(damp(model))

    train(begin, epochs=6)


def healthy_hooks_that_only_record() -> None:
    norms = []
    train(lambda model, epoch: damp(model, lambda gradient: norms.append(gradient.norm())))


def healthy_hooks_of_activations() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(8):
        optimizer.zero_grad()
        features = model[:3](images)
        features.register_hook(halved)
        nn.functional.cross_entropy(model[3](features), labels).backward()
        optimizer.step()


def healthy_hooks_of_several_lines_on_one_layer() -> None:
    def begin(model, epoch) -> None:
        if epoch == 0:
            damp(model)
        if epoch == 1:
            damp(model, lambda gradient: gradient.clamp(-1, 1))

    train(begin)


def train_with_decay(begin, *, epochs: int = 4) -> None:
    """Train; `begin(optimizer, model)` registers a hook of the optimizer before each epoch."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        begin(optimizer, model)
        for images, labels in batches(3, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


@torch.no_grad()
def decay(optimizer: torch.optim.Optimizer, *_) -> None:
    for group in optimizer.param_groups:
        torch._foreach_mul_(group["params"], 0.99)


def broken_in_an_optimizer() -> None:
    train_with_decay(lambda optimizer, model: optimizer.register_step_post_hook(decay))


def broken_after_each_gradient_is_complete() -> None:
    def halve(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(0.5)

    def begin(model, epoch) -> None:
        for each in model[0].parameters():
            each.register_post_accumulate_grad_hook(halve)

    train(begin)


def healthy_hooks_of_an_optimizer_that_are_removed() -> None:
    handles = []

    def begin(optimizer, model) -> None:
        while handles:
            handles.pop().remove()
        handles.append(optimizer.register_step_post_hook(decay))

    train_with_decay(begin)


def healthy_hooks_of_an_optimizer_that_count() -> None:
    steps = []
    train_with_decay(
        lambda optimizer, model: optimizer.register_step_post_hook(lambda *_: steps.append(1))
    )
