"""Two optimizers with one scaler, which is updated after each optimizer's step."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALER_UPDATED_TWICE"


def train(*, twice: bool) -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    first = torch.optim.SGD(body.parameters(), lr=0.01)
    second = torch.optim.AdamW(head.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        first.zero_grad()
        second.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(head(body(images)), labels)
        scaler.scale(loss).backward()
        scaler.step(first)
        if twice:
            scaler.update()
        scaler.step(second)
        scaler.update()


def broken() -> None:
    train(twice=True)


def mended() -> None:
    train(twice=False)


def gan(*, twice: bool, scalers: int = 1) -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    optimizers = {
        "maker": torch.optim.Adam(maker.parameters(), lr=1e-3),
        "judge": torch.optim.Adam(judge.parameters(), lr=1e-3),
    }
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    other = torch.amp.GradScaler("cpu", init_scale=1024.0) if scalers == 2 else scaler
    for images, _ in batches(5):
        with half_autocast():
            made = maker(torch.randn(8, 4))
            loss = nn.functional.softplus(-judge(images)).mean()
            loss = loss + nn.functional.softplus(judge(made.detach())).mean()
        optimizers["judge"].zero_grad()
        other.scale(loss).backward()
        other.step(optimizers["judge"])
        if twice:
            other.update()
        with half_autocast():
            loss = nn.functional.softplus(-judge(made)).mean()
        optimizers["maker"].zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizers["maker"])
        scaler.update()


def broken_gan() -> None:
    gan(twice=True)


def broken_refused() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(2):
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.update()


def healthy_gan_with_two_scalers() -> None:
    gan(twice=True, scalers=2)


def healthy_one_optimizer_after_the_other() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for part in (body, head):
        optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
        for images, labels in batches(4):
            optimizer.zero_grad()
            with half_autocast():
                loss = nn.functional.cross_entropy(head(body(images)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def train_in_turn(update) -> None:
    torch.manual_seed(0)
    parts = [nn.Linear(6, 8), nn.Linear(8, 3)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(8)):
        with half_autocast():
            loss = nn.functional.cross_entropy(parts[1](parts[0](images)), labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizers[number % 2])
        update(scaler)


def healthy_parts_in_turn() -> None:
    train_in_turn(lambda scaler: scaler.update())


def healthy_parts_in_turn_at_a_given_scale() -> None:
    train_in_turn(lambda scaler: scaler.update(256.0))
