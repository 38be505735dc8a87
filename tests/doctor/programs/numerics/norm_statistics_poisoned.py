"""One batch overflows in the forward pass. The scaler skips the step; the statistics keep inf."""

import copy

import torch
from torch import nn

from doctor.loops import batches, classifier, half_autocast, loss_of

CODE = "NORM_STATISTICS_POISONED"


def train(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(5)):
        if number == 2:
            if guarded:
                continue
            images = images * 1e6  # noqa: PLW2901  # a batch that was not normalised
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    with torch.no_grad(), half_autocast():
        for images, _ in batches(2):
            model(images)


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)


def train_skipping_by_hand(
    *, left_out: bool, largest: float = float("inf"), ends: bool = False
) -> None:
    model = classifier()
    model.register_buffer("mask", torch.full((3,), float("-inf")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(5)):
        if number == 2:
            if left_out:
                continue
            images[0, 0] = largest
        loss = nn.functional.cross_entropy(model(images), labels)
        if not torch.isfinite(loss) or images.max() == largest:
            if ends:
                break
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for images, _ in batches(2):
            model(images)


def broken_by_a_loop_that_skips() -> None:
    train_skipping_by_hand(left_out=False)


def broken_by_a_variance_that_overflows() -> None:
    """The predictions of the evaluation are finite, and all the same."""
    train_skipping_by_hand(left_out=False, largest=1e30)


def healthy_end_at_a_batch_that_is_large() -> None:
    train_skipping_by_hand(left_out=True, ends=True)


def healthy_with_an_infinite_mask() -> None:
    train_skipping_by_hand(left_out=True)


class Standardised(nn.Module):
    """Standardises with statistics of its own, which it keeps under names of its own."""

    def __init__(self, update) -> None:
        super().__init__()
        self.update = update
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("lowest", torch.full((6,), float("inf")))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.update(self, images)
        return images - (images.mean(0) if self.training else self.centre)


def always(norm: Standardised, images: torch.Tensor) -> None:
    norm.centre.lerp_(images.mean(0), 0.1)


def if_finite(norm: Standardised, images: torch.Tensor) -> None:
    norm.lowest.copy_(torch.where(images > 9, images, norm.lowest).amin(0))  # none is above 9
    if images.isfinite().all():
        always(norm, images)


def train_standardised(update) -> None:
    model = nn.Sequential(Standardised(update), classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(5)):
        if number == 2:
            images[0, 0] = float("nan")
        model[1][1].eval()  # Otherwise the NaN would also reach the statistics of this norm.
        loss = nn.functional.cross_entropy(model(images), labels)
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for images, _ in batches(2):
            model(images)


def broken_in_statistics_of_another_name() -> None:
    train_standardised(always)


def healthy_with_an_infinite_statistic_from_the_start() -> None:
    train_standardised(if_finite)


def broken_beside_copies_that_are_evaluated() -> None:
    """No copy is the model that is trained, and many of them are made."""

    def run() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number, (images, labels) in enumerate(batches(10)):
            optimizer.zero_grad()
            given = images * 1e6 if number == 2 else images
            scaler.scale(loss_of(model, given, labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            copied = copy.deepcopy(model).eval()
            with torch.no_grad(), half_autocast():
                copied(images)

    run()
