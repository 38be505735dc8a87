"""A loop runs backward on the running sum of its losses."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "LOSS_COUNTED_AGAIN"
PARTS = 3


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = classifier()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(*, inside: bool) -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(PARTS):
            total = total + functional.cross_entropy(model(images), labels) / PARTS
            if inside:
                total.backward(retain_graph=True)
        if not inside:
            total.backward()
        optimizer.step()


def broken() -> None:
    train(inside=True)


def mended() -> None:
    train(inside=False)


def broken_sum_of_a_list() -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        optimizer.zero_grad()
        losses = []
        for _ in range(PARTS):
            losses.append(functional.cross_entropy(model(images), labels))
            sum(losses).backward(retain_graph=True)
        optimizer.step()


def broken_penalty_after_the_loss() -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward(retain_graph=True)
        (loss + 0.1 * model[0].weight.square().sum()).backward()
        optimizer.step()


def healthy_two_losses_of_one_graph() -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        optimizer.zero_grad()
        scores = model(images)
        functional.cross_entropy(scores, labels).backward(retain_graph=True)
        (0.1 * scores.square().mean()).backward()
        optimizer.step()


def healthy_truncated_backpropagation() -> None:
    torch.manual_seed(0)
    cell, head = nn.GRUCell(6, 8), nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
    state = torch.zeros(8, 8)
    for images, labels in batches(6):
        optimizer.zero_grad()
        for _ in range(PARTS):
            state = cell(images, state)
            functional.cross_entropy(head(state), labels).backward(retain_graph=True)
        optimizer.step()
        state = state.detach()


def healthy_gradients_of_several_outputs() -> None:
    model, optimizer = _model()
    for images, _ in batches(6):
        optimizer.zero_grad()
        scores = model(images)
        for direction in torch.eye(3):
            scores.backward(direction.expand(8, 3) / 8, retain_graph=True)
        optimizer.step()


def healthy_each_loss_cleared() -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        total, sums = functional.cross_entropy(model(images), labels), []
        for _ in range(2):
            optimizer.zero_grad()
            total.backward(retain_graph=True)
            sums.append([each.grad.clone() for each in model.parameters()])
        for each, one, other in zip(model.parameters(), *sums, strict=True):
            each.grad = (one + other) / 2
        optimizer.step()


def train_near_the_limit(backward) -> None:
    """Train with a rate that is right for the mean of the losses, and too high for any more."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.7)
    for _ in range(60):
        rows = torch.randn(256, 6)
        optimizer.zero_grad()
        losses = [functional.mse_loss(model(part), part[:, :1]) / 4 for part in rows.chunk(4)]
        backward(losses)
        optimizer.step()


def broken_until_the_loss_is_infinite() -> None:
    def backward(losses) -> None:
        total = 0.0
        for each in losses:
            total = total + each
            total.backward(retain_graph=True)

    train_near_the_limit(backward)


def healthy_losses_one_by_one() -> None:
    def backward(losses) -> None:
        for each in losses:
            each.backward(retain_graph=True)

    train_near_the_limit(backward)


def broken_sum_of_a_stack() -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        optimizer.zero_grad()
        losses = []
        for _ in range(PARTS):
            losses.append(functional.cross_entropy(model(images), labels))
            torch.stack(losses).sum().backward(retain_graph=True)
        optimizer.step()


def healthy_mean_of_another_stack() -> None:
    model, optimizer = _model()
    for images, labels in batches(6):
        optimizer.zero_grad()
        for part in images.split(3):
            scores = model(part).split(1)
            losses = [functional.cross_entropy(each, labels[:1]) for each in scores]
            torch.stack(losses).mean().backward()
        optimizer.step()
