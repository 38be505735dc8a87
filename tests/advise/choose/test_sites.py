"""What a listener hears of a model, and under which name a recipe's exceptions reach it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from halfstep import Engine
from halfstep.advise.choose.sites import Listener


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        weights = (self.query(values) @ values.transpose(-1, -2)).softmax(-1)
        return weights @ values


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.head = nn.Linear(4, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.attention(values).reshape(-1, 4)))


def heard(model: nn.Module) -> tuple[list[tuple[str, int]], dict[str, str]]:
    calls = []

    def hear(key, func, args, kwargs):
        calls.append((key.site.pattern, key.index))
        return func(*args, **kwargs)

    with Listener(model, hear) as listener:
        model(torch.ones(1, 3, 4))
    return calls, {site.pattern: line for site, line in listener.lines.items()}


def test_operators_are_heard_in_order_and_views_are_not() -> None:
    assert heard(Net())[0] == [
        ("attention.query", 0),
        ("attention.matmul", 0),
        ("attention.softmax", 0),
        ("attention.matmul", 1),
        ("op:tanh", 0),
        ("head", 0),
    ]


def test_every_name_that_is_heard_is_one_that_exceptions_take() -> None:
    model = Net()
    for pattern, _ in heard(model)[0]:
        recipe = {"base": "fp16", "exceptions": {pattern: "fp32"}}
        Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe=recipe).close()


def test_each_site_has_its_line_in_the_models_code() -> None:
    lines = heard(Net())[1]
    file, _, number = lines["attention.softmax"].rpartition(":")
    assert file == __file__
    assert ".softmax(-1)" in Path(__file__).read_text().splitlines()[int(number) - 1]


def test_a_site_that_several_lines_call_has_all_of_them() -> None:
    lines = heard(Net())[1]
    file, _, numbers = lines["attention.matmul"].rpartition(":")
    text = Path(file).read_text().splitlines()
    assert ["@" in text[int(number) - 1] for number in numbers.split(", ")] == [True, True]


def test_nothing_is_left_on_the_model() -> None:
    model = Net()
    heard(model)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
