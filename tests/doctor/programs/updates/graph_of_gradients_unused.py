"""The outer loss of meta-learning is that of the first weights, and not of the adapted ones."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from doctor.loops import batches

CODE = "GRAPH_OF_GRADIENTS_UNUSED"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def train(loss_of, steps: int = 6) -> None:
    """Train a network.

    Args:
        loss_of: Returns the loss of a model, inputs and labels.
        steps: Number of steps.
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(steps):
        loss = loss_of(model, images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adapt(model: nn.Module, images, labels, steps: int = 2) -> dict[str, torch.Tensor]:
    fast = dict(model.named_parameters())
    for _ in range(steps):
        loss = functional.cross_entropy(functional_call(model, fast, (images,)), labels)
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {
            name: each - 0.1 * gradient
            for (name, each), gradient in zip(fast.items(), gradients, strict=True)
        }
    return fast


def broken() -> None:
    def loss_of(model, images, labels):
        adapt(model, images[:4], labels[:4])
        return functional.cross_entropy(model(images[4:]), labels[4:])

    train(loss_of)


def mended() -> None:
    def loss_of(model, images, labels):
        fast = adapt(model, images[:4], labels[:4])
        return functional.cross_entropy(functional_call(model, fast, (images[4:],)), labels[4:])

    train(loss_of)


def penalty(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    inputs = images.clone().requires_grad_(requires_grad=True)
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def broken_penalty_that_is_not_added() -> None:
    def loss_of(model, images, labels):
        extra = 10 * penalty(model, images)
        loss = functional.cross_entropy(model(images), labels)
        return loss if extra.requires_grad else loss + extra

    train(loss_of)


def broken_norm_of_the_gradients_of_weights() -> None:
    def loss_of(model, images, labels):
        loss = functional.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        _ = 0.1 * sum(each.square().sum() for each in gradients)
        return loss

    train(loss_of)


def healthy_penalty() -> None:
    train(
        lambda model, images, labels: (
            functional.cross_entropy(model(images), labels) + penalty(model, images)
        )
    )


def healthy_penalty_in_some_steps() -> None:
    """The penalty is always computed, and every eighth step adds it."""
    steps = iter(range(100))

    def loss_of(model, images, labels):
        loss, extra = functional.cross_entropy(model(images), labels), penalty(model, images)
        return loss + extra if next(steps) % 8 == 7 else loss

    train(loss_of, steps=24)


def healthy_penalty_that_is_shown() -> None:
    def loss_of(model, images, labels):
        str(penalty(model, images).item())
        return functional.cross_entropy(model(images), labels)

    train(loss_of)


def healthy_penalties_that_are_kept() -> None:
    """They are put into a list for a figure that is drawn at the end."""
    kept = []

    def loss_of(model, images, labels):
        kept.append(penalty(model, images))
        return functional.cross_entropy(model(images), labels)

    train(loss_of)


def healthy_loss_of_adapted_weights_that_is_shown() -> None:
    """Beside an ordinary training, it is measured how well the weights could adapt."""

    def loss_of(model, images, labels):
        fast = adapt(model, images[:4], labels[:4])
        after = functional_call(model, fast, (images[4:],))
        str(functional.cross_entropy(after, labels[4:]).item())
        return functional.cross_entropy(model(images), labels)

    train(loss_of)


def healthy_product_with_the_hessian() -> None:
    """The gradients are differentiated again, and the result scales the loss."""

    def loss_of(model, images, labels):
        loss = functional.cross_entropy(model(images), labels)
        weights = list(model.parameters())
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        along = sum((each * each.detach()).sum() for each in gradients)
        curved = torch.autograd.grad(along, weights, retain_graph=True)
        return loss / (1 + sum(each.norm() for each in curved))

    train(loss_of)


def healthy_gradients_that_become_those_of_the_weights() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    auxiliary = nn.Linear(6, 3)
    other = torch.optim.SGD(auxiliary.parameters(), lr=0.05)
    for images, labels in batches(6):
        loss = functional.cross_entropy(model(images), labels)
        weights = list(model.parameters())
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        for each, gradient in zip(weights, gradients, strict=True):
            each.grad = gradient * 0.5
        optimizer.step()
        optimizer.zero_grad()
        functional.cross_entropy(auxiliary(images), labels).backward()
        other.step()
        other.zero_grad()


def healthy_equation_with_a_derivative_that_it_does_not_need() -> None:
    """One line takes all derivatives, and only some of them are in the equation."""

    def loss_of(model, images, labels):
        del labels
        points = images.clone().requires_grad_(requires_grad=True)
        values = model(points)
        (first,) = torch.autograd.grad(values[:, 0].sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(values[:, 1].sum(), points, create_graph=True)
        assert (second[:, :2] * 2).isfinite().all()
        return (first[:, 0] - values[:, 0]).square().mean()

    train(loss_of)


def healthy_attack_of_several_steps() -> None:
    """Inputs move along their gradient, which is cut off from the graph."""

    def loss_of(model, images, labels):
        moved = images
        for _ in range(3):
            moved = moved.detach().requires_grad_(requires_grad=True)
            loss = functional.cross_entropy(model(moved), labels)
            (gradient,) = torch.autograd.grad(loss, moved, create_graph=True)
            moved = moved + 0.05 * gradient.sign()
        return functional.cross_entropy(model(moved.detach()), labels)

    train(loss_of)
