"""Statements that make parameters and layers, and what to write instead."""

from __future__ import annotations

import pytest
from torch import nn

from halfstep.doctor.record.classes import (
    assignment_of,
    file_of,
    repetition_of,
    without_parameter,
    without_repetition,
)


class Made(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2)] * 3)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("x = nn.ModuleList([Block(w)] * n)", "x = nn.ModuleList([Block(w) for _ in range(n)])"),
        ("x = 2 * [Block()]", "x = [Block() for _ in range(2)]"),
        ("x = [A(), B()] * n", "x = [layer for _ in range(n) for layer in (A(), B())]"),
        ("x = [block] * n", None),
        ("x = [A()] * 2 + [B()] * 2", None),
        ("x = dict.fromkeys(names, A(w))", "x = {name: A(w) for name in names}"),
        ("x = [*itertools.repeat(A(w), n)]", "x = [*(A(w) for _ in range(n))]"),
        ("x = dict.fromkeys(names, layer)", None),
    ],
)
def test_a_list_of_new_layers(text: str, changed: str | None) -> None:
    assert without_repetition(text) == changed


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("nn.Parameter(torch.zeros(3)).repeat(2)", "torch.zeros(3).repeat(2)"),
        ("Parameter(a + b).to(device)", "(a + b).to(device)"),
        ("nn.Parameter(a, requires_grad=False).t()", None),
        ("torch.zeros(3)", None),
    ],
)
def test_an_expression_without_the_parameter_in_it(text: str, changed: str | None) -> None:
    assert without_parameter(text) == changed


def test_the_lines_of_a_class() -> None:
    mark = assignment_of(Made, "layers")
    assert mark[0] == file_of(Made) == __file__
    assert repetition_of([__file__], "Linear")[:2] == mark[:2]
    assert repetition_of([__file__], "Conv2d") is None
    assert assignment_of(Made, "other") is None
