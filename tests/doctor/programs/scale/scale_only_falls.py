"""The loop's own loss scale: each overflow lowers it, and nothing raises it."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALE_ONLY_FALLS"


def train(
    *, grows: bool, start: float = 64.0, rate: int = 4, weight: float = 0.0, floor: float = 0.0
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale, good = start, 0
    for number, (images, labels) in enumerate(batches(60)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(images).float()
        loss = nn.functional.cross_entropy(outputs, labels)
        if number % rate == rate - 1:
            loss = loss + outputs.mean() * float("inf")
        if weight:
            loss = loss + outputs.square().mean() * weight * 0.5**number
        (loss * scale).backward()
        if all(each.grad.isfinite().all() for each in model.parameters()):
            for each in model.parameters():
                each.grad.div_(scale)
            optimizer.step()
            good += 1
            if grows and good % 3 == 0:
                scale *= 2
        else:
            scale = max(scale / 2, floor)


def broken() -> None:
    train(grows=False)


def broken_at_a_floor_of_one() -> None:
    train(grows=False, floor=1.0)


def mended() -> None:
    train(grows=True)


def broken_as_a_tensor() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale = torch.tensor(16.0)
    for number, (images, labels) in enumerate(batches(40)):
        loss = nn.functional.cross_entropy(model(images), labels)
        scaled = (loss + loss * float("inf") if number % 4 == 0 else loss) * scale
        if not scaled.isfinite():
            scale *= 0.5
            continue
        scaled.backward()
        for each in model.parameters():
            each.grad /= scale
        optimizer.step()
        for each in model.parameters():
            each.grad = None


def healthy_search_at_the_start() -> None:
    train(grows=False, start=2.0**16, rate=12)


def healthy_weight_that_a_schedule_halves() -> None:
    train(grows=True, weight=1.0)


def train_with_given_scales(after, *, weight: float = float("inf")) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for number, (images, labels) in enumerate(batches(60)):
        optimizer.zero_grad()
        is_hard = number % 4 == 3
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss * weight if is_hard else loss).backward()
        scaler.step(optimizer)
        scaler.update(after(scaler.get_scale(), is_hard))


def broken_by_scales_that_the_loop_gives() -> None:
    train_with_given_scales(lambda scale, is_hard: scale / 2 if is_hard else scale)


def healthy_given_scales_that_rise() -> None:
    train_with_given_scales(
        lambda scale, is_hard: scale / 2 if is_hard else scale * 1.26, weight=1e4
    )


def healthy_given_scales_that_settle() -> None:
    train_with_given_scales(
        lambda scale, is_hard: max(scale / 2, 8.0) if is_hard else scale, weight=1e4
    )
