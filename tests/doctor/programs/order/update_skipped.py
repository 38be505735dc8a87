"""A loop that skips both a step and the scaler's update."""

import contextlib

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "UPDATE_SKIPPED"


def train(*, always: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if number != 2 and norm < 1e4:
            scaler.step(optimizer)
        elif not always:
            continue
        scaler.update()


def broken() -> None:
    train(always=False)


def mended() -> None:
    train(always=True)


def broken_and_goes_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(6)):
        scaler.scale(loss_of(model, images, labels)).backward()
        with contextlib.suppress(RuntimeError):
            scaler.unscale_(optimizer)
            if number != 2:
                scaler.step(optimizer)
                scaler.update()
        optimizer.zero_grad()


def broken_never_updated() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)


def healthy_skips_before_unscaling() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(6)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels)
        if number == 3:
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def broken_by_an_update_before_the_step() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        scaler.step(optimizer)


def with_its_own_check(*, handed_to_scaler: bool) -> None:
    """A loop that checks the gradients itself; the scaled loss overflows in the first steps."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    for images, labels in batches(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels) * 100).backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            if handed_to_scaler:
                scaler.step(optimizer)
                scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()


def broken_by_its_own_check() -> None:
    with_its_own_check(handed_to_scaler=False)


def mended_its_own_check() -> None:
    with_its_own_check(handed_to_scaler=True)


def broken_by_its_own_check_after_the_scale_has_grown() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e35, growth_factor=100.0, growth_interval=1)
    for images, labels in batches(12):
        scaler.scale(loss_of(model, images, labels) * 100).backward()
        if all(each.grad.isfinite().all() for each in model.parameters()):
            scaler.step(optimizer)
            scaler.update()
        model.zero_grad()


def healthy_drops_one_bad_batch() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(8)):
        optimizer.zero_grad()
        factor = 1e38 if number == 3 else 1.0
        scaler.scale(loss_of(model, images, labels) * factor).backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            continue
        scaler.step(optimizer)
        scaler.update()


def healthy_clears_what_another_loss_left() -> None:
    first, second = classifier(), nn.Linear(3, 3)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (first, second)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    for images, _ in batches(12):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(second(first(images)).square().mean() * 100).backward()
        optimizers[1].zero_grad()
        scaler.step(optimizers[0])
        scaler.update()


def healthy_gradient_surgery() -> None:
    """Compute the gradients of several losses in turn, and step with their mean."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    for images, labels in batches(8):
        outputs = model(images)
        losses = [nn.functional.cross_entropy(outputs, labels), outputs.square().mean()] * 3
        scaled = [scaler.scale(each * 30) for each in losses]
        stash = []
        for each in scaled:
            optimizer.zero_grad()
            each.backward(retain_graph=True)
            stash.append([parameter.grad.clone() for parameter in model.parameters()])
        for parameter, *grads in zip(model.parameters(), *stash, strict=True):
            parameter.grad = sum(grads) / len(grads)
        scaler.step(optimizer)
        scaler.update()


def healthy_adversarial_training() -> None:
    """Clear the parameters' gradients after each backward that only changes the images."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    for images, labels in batches(8):
        noise = torch.zeros_like(images, requires_grad=True)
        for _ in range(6):
            scaler.scale(loss_of(model, images + noise, labels) * 100).backward()
            noise.data += 0.01 * noise.grad.sign().nan_to_num()
            optimizer.zero_grad()
        scaler.scale(loss_of(model, images + noise.detach(), labels) * 100).backward()
        scaler.step(optimizer)
        scaler.update()


def drops_gradients_that_no_scale_would_help() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(20)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels)
        if number >= 10:
            next(model.parameters()).register_hook(lambda grad: grad * float("nan"))
        scaler.scale(loss).backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            continue
        scaler.step(optimizer)
        scaler.update()


def broken_by_gradients_that_are_set_to_none() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for images, labels in batches(10):
        scaler.scale(loss_of(model, images, labels)).backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            for each in model.parameters():
                each.grad = None
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def broken_without_any_update() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
