"""A loop that never clears its gradients, or clears them once per epoch."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "GRADIENTS_NOT_CLEARED"


def train(*, clear: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(6):
        if clear:
            optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(clear=False)


def mended() -> None:
    train(clear=True)


def broken_clears_once_an_epoch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for _ in range(2):
        optimizer.zero_grad()
        for images, labels in batches(4):
            scaler.scale(loss_of(model, images, labels)).backward()
            scaler.step(optimizer)
            scaler.update()


def broken_keeps_an_overflow_for_ever() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**127
    )  # so large that the scaler skips the first step
    for images, labels in batches(6):
        scaler.scale(4 * loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_without_a_scaler() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def healthy_adds_to_the_gradients_of_its_warm_up() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(6)):
        if number != 1:  # one such step is too few for doctor to report
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def healthy_decays_its_gradients() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        for each in model.parameters():
            each.grad.mul_(0.5)


def healthy_writes_zeros_into_its_gradients() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        for each in model.parameters():
            each.grad.data[:] = 0


def healthy_generator_reaches_the_discriminator() -> None:
    generator, discriminator = nn.Linear(6, 6), classifier()
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(6):
        second.zero_grad()
        scaler.scale(loss_of(discriminator, images, labels)).backward()
        scaler.step(second)
        first.zero_grad()
        scaler.scale(loss_of(discriminator, generator(images), labels)).backward()
        scaler.step(first)
        scaler.update()


def healthy_clears_before_the_backward_after_next() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        for part in range(2):
            loss = nn.functional.cross_entropy(model(images[part::2]), labels[part::2]) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def _closures(*, outside: bool, inside: bool, parts: int = 1) -> None:
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for images, labels in batches(4):

        def closure(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
            if inside:
                optimizer.zero_grad()
            for _ in range(parts):
                loss = nn.functional.cross_entropy(model(images), labels) / parts
                loss.backward()
            return loss

        if outside:
            optimizer.zero_grad()
        optimizer.step(closure)


def broken_closure_cleared_outside() -> None:
    _closures(outside=True, inside=False)


def broken_closure_never_cleared() -> None:
    _closures(outside=False, inside=False)


def healthy_closure() -> None:
    _closures(outside=False, inside=True)


def healthy_closure_that_accumulates() -> None:
    _closures(outside=True, inside=True, parts=3)


def healthy_closure_that_runs_once() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):

        def closure(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            return loss

        optimizer.zero_grad()
        optimizer.step(closure)


def train_in_parts(*, clear) -> None:
    """Two tasks share a trunk; `clear(trunk, head, first)` runs before the backward of each."""
    torch.manual_seed(0)
    trunk, heads = nn.Linear(6, 8), [nn.Linear(8, 3), nn.Linear(8, 3)]
    optimizer = torch.optim.SGD(nn.ModuleList([trunk, *heads]).parameters(), lr=0.01)
    for images, labels in batches(6):
        for number, head in enumerate(heads):
            clear(trunk, head, number == 0)
            nn.functional.cross_entropy(head(trunk(images).relu()), labels).backward()
        optimizer.step()


def broken_in_one_of_several_parts() -> None:
    def clear(trunk: nn.Module, head: nn.Module, first: bool) -> None:
        del trunk, first
        head.zero_grad()

    train_in_parts(clear=clear)


def healthy_parts_that_are_cleared_one_by_one() -> None:
    def clear(trunk: nn.Module, head: nn.Module, first: bool) -> None:
        head.zero_grad(set_to_none=False)
        if first:
            trunk.zero_grad(set_to_none=False)

    train_in_parts(clear=clear)


def healthy_parts_whose_first_backward_is_not_used() -> None:
    def clear(trunk: nn.Module, head: nn.Module, first: bool) -> None:
        del first
        head.zero_grad()
        trunk.zero_grad()

    train_in_parts(clear=clear)


def train_by_hand(clear) -> None:
    """Train without an optimizer, with an update after each second backward.

    Args:
        clear: Is called with each weight after its update.
    """
    model = classifier()
    for number, (images, labels) in enumerate(batches(8)):
        (nn.functional.cross_entropy(model(images), labels) / 2).backward()
        if number % 2:
            for each in model.parameters():
                each.data -= 0.05 * each.grad
                clear(each)


def broken_in_updates_by_hand() -> None:
    train_by_hand(lambda weight: None)


def healthy_updates_by_hand() -> None:
    def clear(weight) -> None:
        weight.grad = None

    train_by_hand(clear)


def healthy_zeros_by_hand() -> None:
    train_by_hand(lambda weight: weight.grad.data.zero_())


def healthy_momentum_in_the_gradients() -> None:
    train_by_hand(lambda weight: weight.grad.mul_(0.9))
