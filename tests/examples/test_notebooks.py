"""The notebooks under examples/ run, cell by cell, and find what their text says.

In this process rather than in a kernel, which would import torch anew for each.
"""

import json
import linecache
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def cells(name):
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    return [each for each in book["cells"] if each["cell_type"] == "code"]


def run(name, **settings):
    """Run the code cells one after the other; `settings` replace what a cell has set."""
    names = {}
    for number, cell in enumerate(cells(name)):
        source, file = "".join(cell["source"]), f"<{name}, cell {number}>"
        # As a kernel does, so that the lines of a cell can be looked up.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
        names.update({each: value for each, value in settings.items() if each in names})
    return names


@pytest.mark.parametrize("name", ["double_step", "rates", "two_bit"])
def test_a_notebook_was_saved_as_it_ran_from_top_to_bottom(name):
    counts = [cell["execution_count"] for cell in cells(name)]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {each["output_type"] for cell in cells(name) for each in cell["outputs"]}
    assert kinds == {"stream"}


def test_the_double_step_is_named_with_its_line(capsys):
    found = run("double_step")
    printed = capsys.readouterr().out
    assert not torch.tensor(found["wrong"]).isfinite().all()
    assert found["right"][-1] < 0.3
    assert "STEP_BYPASSES_SCALER (certain)" in printed
    assert "the line: optimizer.step()" in printed
    assert "was called past the engine" in printed


def test_rates_break_every_precision_and_adamw_pure_half_alone(capsys):
    points = [(32, 0.1), (128, 40.0)]
    found = run("rates", RECIPES=("fp32", "half", "fp16"), IMAGES=20 * 128, POINTS=points)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(float(found["results"][each, points[0]].rstrip("%")) > 85 for each in found["RECIPES"])
    assert {row[0]: row[1] for row in rows[-3:]} == {"fp32": rows[-3][1], "half": "nan", "fp16": rows[-1][1]}
    assert all("nan" in found["results"][each, points[1]] for each in found["RECIPES"])


def test_two_bits_save_most_of_the_bytes_and_cost_little_accuracy():
    found = run("two_bit", STEPS=40)
    assert found["held"]["fp32"] > 8 * found["held"]["act2"]
    assert found["accuracies"]["fp32"] > 0.9
    assert found["accuracies"]["act2"] > found["accuracies"]["fp32"] - 0.1
