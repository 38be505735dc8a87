"""Clipping raises an error for the first steps, in which the scaler searches for its scale."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "ERROR_AT_OVERFLOW"


def train(*, raises: bool, scale: float = 2.0**24, detects: bool = False) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with torch.autograd.set_detect_anomaly(detects):
        for images, labels in batches(16):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, images, labels)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=raises)
            scaler.step(optimizer)
            scaler.update()


def train_behind_a_catch(goes_on) -> None:
    """Train until the first error of clipping, which the program catches; `goes_on(...)` then."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for images, labels in batches(16):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        try:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        except RuntimeError:
            if not goes_on(scaler, optimizer):
                break
            continue
        scaler.step(optimizer)
        scaler.update()


def broken_by_an_error_that_the_program_catches() -> None:
    train_behind_a_catch(lambda scaler, optimizer: False)


def healthy_errors_that_only_skip() -> None:
    def goes_on(scaler, optimizer) -> bool:
        scaler.step(optimizer)
        scaler.update()
        return True

    train_behind_a_catch(goes_on)


def healthy_errors_after_which_the_loop_lowers_the_scale() -> None:
    def goes_on(scaler, optimizer) -> bool:
        scaler.update(scaler.get_scale() / 4)
        return True

    train_behind_a_catch(goes_on)


def broken() -> None:
    train(raises=True)


def mended() -> None:
    train(raises=False)


def broken_by_anomaly_detection() -> None:
    train(raises=False, detects=True)


def healthy_at_a_low_scale() -> None:
    train(raises=True, scale=1024.0, detects=True)


def train_with(look, *, scale: float = 2.0**24) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for images, labels in batches(16):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        look([each.grad for each in model.parameters()])
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_histogram() -> None:
    train_with(lambda gradients: [torch.histc(each.abs()) for each in gradients])


def broken_by_an_assertion() -> None:
    def check(gradients) -> None:
        assert all(each.isfinite().all() for each in gradients)

    train_with(check)


def healthy_histogram_at_a_low_scale() -> None:
    train_with(lambda gradients: [torch.histc(each.abs()) for each in gradients], scale=64.0)


def healthy_check_that_waits() -> None:
    overflows = []

    def check(gradients) -> None:
        overflows.append(not all(each.isfinite().all() for each in gradients))
        if all(overflows[-14:]) and len(overflows) > 13:
            raise FloatingPointError("the gradients stay infinite")

    train_with(check)
