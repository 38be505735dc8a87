"""Tensors in the attributes of modules: what is to be trained, and what is an input."""

from __future__ import annotations

import torch
from torch import nn

from halfstep.doctor import Watch
from halfstep.doctor.signals.program.attributes import Attributes


class Equation(nn.Module):
    """A net for u' = -u, which keeps its points and differentiates by them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self.points = torch.linspace(0, 1, 16).unsqueeze(1).requires_grad_()

    def forward(self):
        values = self.net(self.points)
        (slopes,) = torch.autograd.grad(values.sum(), self.points, create_graph=True)
        return (slopes + values).square().mean()


class Learned(Equation):
    """The same with a factor that should be learned."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1)) + 0

    def forward(self):
        return (self.factor * super().forward()).mean()


def attributes(model) -> list[tuple[str, str]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Watch() as watch:
        for _ in range(4):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
    assert not watch.troubles
    found = watch.close().of(Attributes).tensors
    return [(each.name, each.site.text) for each in found]


def test_points_by_which_a_module_differentiates_are_no_parameters() -> None:
    model = Equation()
    assert attributes(model) == []
    assert model.points.grad is not None


def test_a_parameter_behind_an_operator_is_one_also_beside_them() -> None:
    line = "self.factor = nn.Parameter(torch.ones(1)) + 0"
    assert attributes(Learned()) == [("factor", line)]
