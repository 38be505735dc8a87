"""A network that solves Poisson's equation takes both second derivatives in one call."""

import torch
from torch import nn

CODE = "MIXED_DERIVATIVES"


def gradient(outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    (made,) = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), create_graph=True)
    return made


def at_once(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return gradient(gradient(outputs, points), points).sum(1, keepdim=True)


def of_sums(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    slopes = torch.autograd.grad(outputs.sum(), points, create_graph=True)[0]
    second = torch.autograd.grad(slopes.sum(), points, create_graph=True)[0]
    return second[:, :1] + second[:, 1:]


def by_column(outputs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    slopes = gradient(outputs, points)
    columns = [gradient(slopes[:, at : at + 1], points)[:, at : at + 1] for at in (0, 1)]
    return columns[0] + columns[1]


def train(laplacian, coordinates: int = 2) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(coordinates, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(16):
        points = torch.rand(32, coordinates, requires_grad=True)
        loss = (laplacian(model(points), points) + 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(at_once)


def mended() -> None:
    train(by_column)


def broken_of_sums() -> None:
    train(of_sums)


def healthy_one_coordinate() -> None:
    train(at_once, 1)


def healthy_product_with_the_hessian() -> None:
    """Hutchinson's estimate of the Laplacian."""

    def laplacian(outputs, points):
        signs = torch.randint(0, 2, points.shape) * 2.0 - 1
        slopes = gradient(outputs, points)
        (product,) = torch.autograd.grad(slopes, points, signs, create_graph=True)
        return (product * signs).sum(1, keepdim=True)

    train(laplacian)


def healthy_coordinates_apart() -> None:
    """Of a sum of functions of one coordinate each, the mixed derivatives are 0."""
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2))
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    for _ in range(16):
        points = torch.rand(32, 2, requires_grad=True)
        outputs = first(points[:, :1]) + second(points[:, 1:])
        loss = (at_once(outputs, points) + 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_slope_of_a_penalty() -> None:
    """A penalty of gradients is differentiated by the points again."""

    def penalty(outputs, points):
        slopes = gradient(outputs, points)
        return gradient(slopes.square().sum(1), points)

    train(penalty)
