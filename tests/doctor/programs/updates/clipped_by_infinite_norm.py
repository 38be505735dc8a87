"""Gradients are clipped without a scaler, although one of them is infinite."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, loss_of

CODE = "CLIPPED_BY_INFINITE_NORM"


def train(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        if number == 2:
            weight = model[3].weight[0, 0]
            # The derivative of this square root is 1e30 / 2e-22, beyond fp32.
            loss = loss + (weight - weight.detach() + 1e-44).sqrt() * 1e30
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite() or not guarded:
            optimizer.step()


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)


def broken_by_a_gradient_that_the_loop_writes() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        if number == 3:
            model[0].weight.grad[0, 0] = float("inf")
        norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
        for each in model.parameters():
            each.grad.mul_((1 / (norm + 1e-6)).clamp(max=1))
        optimizer.step()


def healthy_under_a_scaler() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss * 1e36 if number == 2 else loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def healthy_with_finite_norms() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(5):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images), labels) * 1e15).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()


def broken_by_an_overflow_in_a_half_backward() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels).float()
        (loss * 1e7 if number == 2 else loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def train_masters(*, guarded: bool) -> None:
    model = classifier()
    model[1] = torch.nn.Identity()
    model.half()
    masters = [each.detach().float().clone() for each in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    for number, (images, labels) in enumerate(batches(6)):
        loss = functional.cross_entropy(model(images.half()).float(), labels)
        model.zero_grad()
        (loss * 3e6 if number == 3 else loss).backward()
        for mine, its in zip(masters, model.parameters(), strict=True):
            mine.grad = its.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(masters, 1.0)
        if guarded and not norm.isfinite():
            continue
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(masters, model.parameters(), strict=True):
                its.copy_(mine)


def broken_on_fp32_copies() -> None:
    train_masters(guarded=False)


def healthy_on_fp32_copies() -> None:
    train_masters(guarded=True)


def train_on_large(clip, scale: float = 1e24) -> None:
    """Gradients are finite in fp32, and their squares are not."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images), labels) * scale).backward()
        clip([*model.parameters()])
        optimizer.step()


def broken_by_squares_that_overflow() -> None:
    train_on_large(lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0))


def own_clip(norm_of):
    def clip(parameters) -> None:
        norm = norm_of([each.grad for each in parameters])
        torch._foreach_mul_([each.grad for each in parameters], float((1 / norm).clamp(max=1)))

    return clip


def broken_by_squares_in_a_clip_of_its_own() -> None:
    train_on_large(
        own_clip(lambda gradients: sum(each.square().sum() for each in gradients).sqrt())
    )


def healthy_norm_in_double() -> None:
    def norm_of(gradients):
        return sum(each.double().square().sum() for each in gradients).sqrt()

    train_on_large(own_clip(norm_of))


def healthy_largest_element() -> None:
    def norm_of(gradients):
        return torch.stack([each.abs().max() for each in gradients]).max()

    train_on_large(own_clip(norm_of))
