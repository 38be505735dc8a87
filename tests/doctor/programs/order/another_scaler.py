"""Two losses, each with its own scaler, that reach the same parameters."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "GRADIENTS_OF_ANOTHER_SCALER"


def train(*, several: bool) -> None:
    torch.manual_seed(0)
    body, heads = nn.Linear(6, 8), [nn.Linear(8, 3), nn.Linear(8, 3)]
    parameters = [*body.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    second = torch.amp.GradScaler("cpu", init_scale=64.0) if several else scaler
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            features = body(images)
            losses = [nn.functional.cross_entropy(head(features), labels) for head in heads]
        scaler.scale(losses[0]).backward(retain_graph=True)
        second.scale(losses[1]).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(several=True)


def mended() -> None:
    train(several=False)


def broken_stepped_by_the_wrong_one() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**each) for each in (8, 12)]
    for images, labels in batches(4):
        for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
            optimizer.zero_grad()
            with half_autocast():
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
        scalers[1].step(optimizers[0])
        scalers[0].step(optimizers[1])
        for scaler in scalers:
            scaler.update()


def broken_by_one_that_has_multiplied_nothing() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (body, head)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in optimizers]
    for images, labels in batches(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(head(body(images)), labels)
        scalers[0].scale(loss).backward()
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.step(optimizer)  # torch raises for the second
            scaler.update()


def train_at_once(backward, *, swapped: bool = False) -> None:
    torch.manual_seed(0)
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**each) for each in (8, 12)]
    for images, labels in batches(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with half_autocast():
            losses = [nn.functional.cross_entropy(model(images), labels) for model in models]
        backward([scaler.scale(loss) for scaler, loss in zip(scalers, losses, strict=True)])
        for optimizer, scaler in zip(optimizers, scalers[:: -1 if swapped else 1], strict=True):
            scaler.step(optimizer)
            scaler.update()


def broken_in_one_backward() -> None:
    train_at_once(torch.autograd.backward, swapped=True)


def healthy_in_one_backward() -> None:
    train_at_once(torch.autograd.backward)


def healthy_in_a_sum_of_scaled_losses() -> None:
    train_at_once(lambda losses: sum(losses).backward())
