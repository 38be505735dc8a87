"""A loop leaves out a step whose gradients have NaN, and clears gradients only after a step."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "GRADIENTS_KEPT_AFTER_SKIP"


def weighted(outputs, labels, weights) -> torch.Tensor:
    losses = nn.functional.cross_entropy(outputs, labels, reduction="none")
    return (weights * losses).sum() / weights.sum()


def norm_of(model: nn.Module) -> torch.Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(*, kept: bool, count: int = 24, bad: int = 6) -> None:
    """One batch has no weight at all, so its mean is 0/0."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(count)):
        weights = torch.zeros(8) if number == bad else torch.ones(8)
        weighted(model(images), labels, weights).backward()
        if torch.isfinite(norm_of(model)):
            optimizer.step()
            if kept:
                optimizer.zero_grad()
        if not kept:
            optimizer.zero_grad()


def broken() -> None:
    train(kept=True)


def mended() -> None:
    train(kept=False)


def broken_by_a_check_of_the_loss() -> None:
    """The check comes after the backward, and `continue` leaves out the clearing, too."""
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(24)):
        loss = weighted(model(images), labels, torch.full((8,), float(number != 6)))
        loss.backward()
        norm_of(model)
        if any(not each.grad.isfinite().all() for each in model.parameters()):
            continue
        optimizer.step()
        optimizer.zero_grad()


def broken_by_a_limit_of_the_norm() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(30)):
        factor = 1e30 if number == 6 else 1.0
        (factor * nn.functional.cross_entropy(model(images), labels)).backward()
        norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
        if norm < 100:
            optimizer.step()
            model.zero_grad()


def broken_beside_an_accumulation() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(48)):
        weights = torch.zeros(8) if number == 9 else torch.ones(8)
        (weighted(model(images), labels, weights) / 2).backward()
        if number % 2 == 1 and torch.isfinite(norm_of(model)):
            optimizer.step()
            optimizer.zero_grad()


def healthy_check_of_the_loss_before_the_backward() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(24)):
        loss = weighted(model(images), labels, torch.full((8,), float(number != 6)))
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def healthy_window_that_is_dropped_at_the_end() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(23)):
        (nn.functional.cross_entropy(model(images), labels) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def healthy_analysis_after_training() -> None:
    """After training, gradients are only looked at, and nothing clears them."""
    train(kept=False, bad=-1)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for images, labels in batches(12):
        nn.functional.cross_entropy(model(images), labels).backward()


def train_with_spikes(*, kept: bool, count: int = 60, spikes=(20, 33, 47)) -> None:
    """Batches with a loss far above the others get no step; nothing is inf or NaN."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for number, (images, labels) in enumerate(batches(count)):
        if not kept:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss = loss * 50 if number in spikes else loss
        loss.backward()
        if loss.item() > 10:
            continue
        optimizer.step()
        if kept:
            optimizer.zero_grad()


def broken_by_rare_spikes() -> None:
    train_with_spikes(kept=True)


def broken_by_spikes_of_the_norm() -> None:
    """The loss of these batches is usual; their gradients are not."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for number, (images, labels) in enumerate(batches(60)):
        loss = nn.functional.cross_entropy(model(images), labels)
        if number in {20, 33, 47}:
            loss = loss.detach() + 100 * (loss - loss.detach())
        loss.backward()
        if nn.utils.get_total_norm([each.grad for each in model.parameters()]) > 20:
            continue
        optimizer.step()
        optimizer.zero_grad()


def healthy_spikes_that_are_cleared() -> None:
    train_with_spikes(kept=False)


def healthy_windows_of_different_sizes() -> None:
    """A step is made as soon as there are enough samples."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(80)):
        (nn.functional.cross_entropy(model(images), labels) / 2).backward()
        if number % 7 not in {2, 5}:
            optimizer.step()
            optimizer.zero_grad()


def healthy_second_phase_with_an_optimizer_of_its_own() -> None:
    """The first optimizer still exists, and the backward passes reach its parameters."""
    body, head = nn.Linear(6, 16), nn.Linear(16, 3)
    first = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5)
    second = torch.optim.SGD(body.parameters(), lr=0.01)
    for optimizer, factor in ((first, 0.1), (second, 100.0)):
        for images, labels in batches(40):
            optimizer.zero_grad()
            (factor * nn.functional.cross_entropy(head(body(images)), labels)).backward()
            optimizer.step()


def healthy_attack_after_training() -> None:
    """An attack makes the loss large, and only uses the gradients of its inputs."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    images, labels = next(batches(1))
    for _ in range(12):
        images = images.detach().requires_grad_()
        (nn.functional.cross_entropy(model(images), labels) * 20).backward()
        images = images + images.grad.sign()


def bounded(*, kept: bool, bound: float = 2.0) -> None:
    """Train without the steps whose gradients have a norm above a bound."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for number, (images, labels) in enumerate(batches(60)):
        loss = nn.functional.cross_entropy(model(images), labels)
        if number % 9 == 8:
            loss = loss.detach() + 1.5 * (loss - loss.detach())
        if not kept:
            optimizer.zero_grad()
        loss.backward()
        norm = sum(each.grad.square().sum() for each in model.parameters()).sqrt()
        if norm > bound:
            continue
        optimizer.step()
        optimizer.zero_grad()


def broken_by_a_bound_for_the_norm() -> None:
    bounded(kept=True)


def healthy_bound_for_the_norm() -> None:
    bounded(kept=False)


def healthy_windows_that_end_by_chance() -> None:
    """The norm is read in each pass, and decides nothing."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for number, (images, labels) in enumerate(batches(60)):
        nn.functional.cross_entropy(model(images), labels).backward()
        assert sum(each.grad.square().sum() for each in model.parameters()).sqrt() > 0
        if number % 5 not in {1, 3}:
            optimizer.step()
            optimizer.zero_grad()


def train_without_the_worst(*, kept: bool) -> None:
    """The losses fall, and a batch whose loss is far above their average gets no step."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    average = None
    for number, (images, labels) in enumerate(batches(60)):
        if not kept:
            optimizer.zero_grad()
        classes = labels.roll(3) if number % 7 == 6 else labels
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        if average is not None and loss.item() > average + 0.3:
            continue
        average = loss.item() if average is None else 0.8 * average + 0.2 * loss.item()
        optimizer.step()
        if kept:
            optimizer.zero_grad()


def broken_by_an_average_of_the_losses() -> None:
    train_without_the_worst(kept=True)


def healthy_average_of_the_losses() -> None:
    train_without_the_worst(kept=False)
