"""The notebooks under examples/ run, cell by cell, and find what their text says.

In this process rather than in a kernel, which would import torch anew for each.
"""

import json
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def cells(name):
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    return [each for each in book["cells"] if each["cell_type"] == "code"]


@pytest.fixture
def run(tmp_path):
    """Run the code cells one after the other; `settings` replace what a cell has set."""

    def run_cells(name, **settings):
        names = {}
        for number, cell in enumerate(cells(name)):
            # Each in a file, as a kernel has them, so that its lines can be looked up.
            file = tmp_path / f"{name}_{number}.py"
            file.write_text("".join(cell["source"]))
            exec(compile(file.read_text(), file, "exec"), names)
            names.update({each: value for each, value in settings.items() if each in names})
        return names

    return run_cells


@pytest.mark.parametrize("name", ["double_step", "rates", "two_bit"])
def test_a_notebook_was_saved_as_it_ran_from_top_to_bottom(name):
    counts = [cell["execution_count"] for cell in cells(name)]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {each["output_type"] for cell in cells(name) for each in cell["outputs"]}
    assert kinds == {"stream"}


def test_the_double_step_is_named_with_its_line(run, capsys):
    found = run("double_step")
    printed = capsys.readouterr().out
    assert not torch.tensor(found["wrong"]).isfinite().all()
    assert found["right"][-1] < 0.3
    assert "STEP_BYPASSES_SCALER (certain)" in printed
    assert "the line: optimizer.step()" in printed
    assert "was called directly, but the engine" in printed


@pytest.mark.filterwarnings("ignore:eps = 1e-08 is 0 in fp16")
def test_rates_break_every_precision_and_adamw_pure_half_alone(run, capsys):
    points = [(32, 0.1), (128, 40.0)]
    found = run("rates", RECIPES=("fp32", "half", "fp16"), IMAGES=20 * 128, POINTS=points)
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    learnt = [found["results"][each, points[0]] for each in found["RECIPES"]]
    assert min(float(each.rstrip("%")) for each in learnt) > 85
    assert [recipe for recipe, adamw in rows[-3:] if "nan" in adamw] == ["half"]
    assert all("nan" in found["results"][each, points[1]] for each in found["RECIPES"])


def test_two_bits_save_most_of_the_bytes_and_cost_little_accuracy(run):
    found = run("two_bit", STEPS=40)
    assert found["held"]["fp32"] > 8 * found["held"]["act2"]
    assert found["accuracies"]["fp32"] > 0.9
    assert found["accuracies"]["act2"] > found["accuracies"]["fp32"] - 0.1
