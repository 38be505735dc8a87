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


def _joint(*, shared: bool, by_turns: bool = False, clears: bool = True) -> None:
    torch.manual_seed(0)
    body, one, other = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
    first = torch.optim.SGD([*body.parameters(), *one.parameters()], lr=0.01)
    owned = [*other.parameters(), *(body.parameters() if shared else [])]
    second = torch.optim.SGD(owned, lr=0.01)
    for images, labels in batches(6):
        first.zero_grad()
        second.zero_grad()
        losses = [nn.functional.cross_entropy(head(body(images)), labels) for head in (one, other)]
        if not by_turns:
            sum(losses).backward()
            first.step()
            second.step()
            continue
        for loss, optimizer in zip(losses, (first, second), strict=True):
            if clears:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def broken_without_a_scaler() -> None:
    _joint(shared=True)


def broken_by_turns_without_clearing() -> None:
    _joint(shared=True, by_turns=True, clears=False)


def healthy_by_turns_without_a_scaler() -> None:
    torch.manual_seed(0)
    body, heads = nn.Linear(6, 8), [nn.Linear(8, 3), nn.Linear(8, 3)]
    optimizers = [
        torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01) for head in heads
    ]
    for images, labels in batches(6):
        for head, optimizer in zip(heads, optimizers, strict=True):
            nn.functional.cross_entropy(head(body(images)), labels).backward()
            optimizer.step()
            optimizer.zero_grad()


def healthy_joint_loss_of_separate_owners() -> None:
    _joint(shared=False)


class Lookahead(torch.optim.Optimizer):
    """An optimizer that steps another one, which has the same parameters."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


def healthy_optimizer_around_another_one() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.01))
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def in_turn(*, shared: bool) -> None:
    """Each optimizer makes its step and clears its gradients before the next one."""
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    first = torch.optim.SGD(body.parameters(), lr=0.01)
    owned = [*head.parameters(), *(body.parameters() if shared else [])]
    second = torch.optim.SGD(owned, lr=0.02)
    for images, labels in batches(6):
        nn.functional.cross_entropy(head(body(images)), labels).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()


def broken_cleared_by_the_first() -> None:
    in_turn(shared=True)


def healthy_in_turn() -> None:
    in_turn(shared=False)


def healthy_second_phase_with_frozen_parameters() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    for rate in (0.01, 0.001):
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=rate)
        for images, labels in batches(6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(body(images)), labels).backward()
            optimizer.step()
        body.requires_grad_(requires_grad=False)
