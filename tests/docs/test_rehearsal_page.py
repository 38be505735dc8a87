"""The programs of docs/rehearsal.md run."""

import re
from pathlib import Path

import torch

import halfstep

PAGE = (Path(__file__).parents[2] / "docs" / "rehearsal.md").read_text()
KERNELS, ROUNDING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_a_loop_of_ones_own_gets_the_kernels():
    names = {
        "torch": torch,
        "criterion": torch.nn.functional.cross_entropy,
        "model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)),
        "images": torch.randn(2, 1, 2, 2),
        "labels": torch.tensor([0, 2]),
    }
    exec(KERNELS, names)
    assert names["loss"].isfinite()
    assert all(param.grad is not None for param in names["model"].parameters())


def test_rounding_gives_values_of_the_format():
    exec(
        ROUNDING.replace("round_to(weights", "rounded = round_to(weights"),
        names := {"weights": torch.tensor([1.07, 1e6])},
    )
    assert names["rounded"].tolist() == [1.125, 448.0]


def test_every_format_of_the_table_is_a_recipe():
    table = PAGE[PAGE.index("| rehearsed | how |") :]
    named = {
        name
        for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
        for name in row.split(", ")
    }
    assert named - {"rehearsed", "---"} <= set(halfstep.recipes())
