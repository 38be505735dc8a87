"""Two optimizers share an encoder, and one scaler steps both on the same gradients."""

import warnings

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "PARAMETER_IN_TWO_OPTIMIZERS"


def train(*, shared: bool, clip: bool = False) -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    first = torch.optim.SGD(body.parameters(), lr=0.01)
    owned = [*head.parameters(), *(body.parameters() if shared else [])]
    second = torch.optim.AdamW(owned, lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        first.zero_grad()
        second.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(head(body(images)), labels)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(first)
            nn.utils.clip_grad_norm_(body.parameters(), 1.0)
            scaler.unscale_(second)
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        scaler.step(first)
        scaler.step(second)
        scaler.update()


def broken() -> None:
    train(shared=True)


def mended() -> None:
    train(shared=False)


def broken_and_clipped() -> None:
    train(shared=True, clip=True)


def _tied(*, twice: bool) -> None:
    torch.manual_seed(0)
    embed, head = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
    head.weight = embed.weight
    owned = [*embed.parameters(), *head.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about this
        optimizer = torch.optim.AdamW(owned if twice else owned[:1], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(head(embed(labels)), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_tied_and_listed_twice() -> None:
    _tied(twice=True)


def healthy_tied() -> None:
    _tied(twice=False)


def healthy_shared_by_turns() -> None:
    torch.manual_seed(0)
    body = nn.Linear(6, 8)
    heads = [nn.Linear(8, 3), nn.Linear(8, 3)]
    optimizers = [
        torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01) for head in heads
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        for head, optimizer in zip(heads, optimizers, strict=True):
            optimizer.zero_grad()
            with half_autocast():
                loss = nn.functional.cross_entropy(head(body(images)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        scaler.update()
