"""A penalty on gradients of a scaled loss, without a division by the scale."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "PENALTY_ON_SCALED_GRADIENTS"


def train(*, divided: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(
            scaler.scale(loss), list(model.parameters()), create_graph=True
        )
        if divided:
            inverse = 1.0 / scaler.get_scale()
            gradients = [each * inverse for each in gradients]
        with half_autocast():
            loss = loss + sum(each.square().sum() for each in gradients).sqrt()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(divided=False)


def mended() -> None:
    train(divided=True)


def critic(*, autocast: bool, size: float, scaled: bool = False) -> None:
    torch.manual_seed(0)
    judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(judge.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, _ in batches(4):
        mixed = images.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            scores = judge(mixed).float().mean() * size
        outputs = scaler.scale(scores) if scaled else scores
        (gradient,) = torch.autograd.grad(outputs, mixed, create_graph=True)
        gradient = gradient.float() / size
        if scaled:
            gradient = gradient / scaler.get_scale()
        penalty = (gradient.norm(2, dim=1) - 1).square().mean()
        scaler.scale(scores / size + 10 * penalty).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def broken_underflows() -> None:
    critic(autocast=True, size=1e-6)


def healthy_penalty_in_fp32() -> None:
    critic(autocast=False, size=1e-6)


def healthy_penalty_without_a_scale_that_fits() -> None:
    critic(autocast=True, size=1.0)


def healthy_penalty_scaled() -> None:
    critic(autocast=True, size=1.0, scaled=True)


def train_with_a_square(inverse) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        inputs = images.clone().requires_grad_()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(inputs), labels)
        (slope,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        energy = slope.float().pow(2).sum(1).mean()
        scaler.scale(loss + 0.1 * energy * inverse(scaler.get_scale())).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_square_divided_once() -> None:
    train_with_a_square(lambda scale: 1 / scale)


def healthy_square_divided_by_the_square() -> None:
    train_with_a_square(lambda scale: 1 / scale**2)


def healthy_square_divided_twice() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(scaler.scale(loss), model[0].weight, create_graph=True)
        energy = (gradients[0] * gradients[0]).sum() / scaler.get_scale()
        scaler.scale(loss + 0.1 * energy / scaler.get_scale()).backward()
        scaler.step(optimizer)
        scaler.update()
