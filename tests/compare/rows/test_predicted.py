"""Predicted figures are shown, and can never be mistaken for measured ones."""

import io
import json
import re

import pytest
from rich.console import Console

from compare.synthetic import fill
from halfstep.compare.output.records import as_json, csv_text
from halfstep.compare.output.report.page import page
from halfstep.compare.output.table import show
from halfstep.compare.output.texts import latex, markdown
from halfstep.compare.plan.grid import Arm
from halfstep.compare.rows.predicted import MARK, Figure, Predicted, Prediction

# Digits that no measured figure of these tests has.
SECONDS, SPEED, MEMORY = (
    Figure(0.00411, 0.00369, 0.00466),
    Figure(1.511, 1.777, 1.999),
    4321 * 2**20,
)
FIGURES = ("3.7", "1.78", "4321")
REFERENCE = Figure(0.00611, 0.00633, 0.00677)


@pytest.fixture
def compared(make_grid):
    grid = make_grid(("fp32", "fp16"))
    predicted, refused = grid.arms
    rows = (
        Predicted(predicted, "a", SECONDS, SPEED, MEMORY, "compute", "does not fit", {"odd": 3}),
        Predicted(refused, "b", reason="a CPU rehearses float8"),
    )
    tf32 = Predicted(Arm("tf32"), "c", REFERENCE, None, 5555 * 2**20, "host")
    of_gpu = Prediction("h100_sxm", "H100 SXM5 80GB", 80, "tf32", rows, (tf32,), "measured: slow")
    return grid, fill(grid), [of_gpu]


def terminal(grid, results, predicted):
    console = Console(file=io.StringIO(), width=80)
    show(console, grid, results, predicted)
    return console.file.getvalue()


@pytest.mark.parametrize("write", [terminal, markdown, latex])
def test_every_predicted_figure_is_marked_and_under_a_heading_of_its_own(write, compared):
    text = write(*compared)
    mark = r"$\approx$" if write is latex else MARK
    measured, heading, predicted = text.partition("predicted, H100 SXM5 80GB")
    assert heading
    for figure in FIGURES:
        assert figure not in measured
        assert f"{mark}{figure}" in predicted
        assert len(re.findall(rf"(?<!\d){re.escape(figure)}", text)) == 1
    assert "4.1, 4.7" in predicted.replace("[", "").replace("]", "")
    assert ("nothing ran there" if write is terminal else "nothing ran on H100") in predicted
    assert "the time of odd (3 in a step) is estimated only from its memory traffic" in predicted
    assert "no prediction for fp16: a CPU rehearses float8" in predicted
    assert f"{mark} measured: slow" in predicted


@pytest.mark.parametrize("write", [terminal, markdown, page])
def test_the_reference_of_predicted_speeds_has_a_row(write, compared):
    text = write(*compared).partition("predicted, H100 SXM5")[2].replace("\\", "")
    text = re.sub(r"<[^>]*>|\s+|[|]", " ", text)
    row = rf"tf32 \(reference\) +- +{MARK}6\.3 \[6\.1, 6\.8\] +1 +{MARK}5555 +host "
    assert re.search(row, re.sub(" +", " ", text))
    if write is not terminal:  # which has the most important notes only
        assert "fp32 with products in TF32. This recipe was not trained here." in text


def test_a_terminal_of_eighty_columns_shows_all_of_it(compared):
    table = terminal(*compared).partition("predicted, ")[2].splitlines()
    rows = [
        line for line in table if line.lstrip().startswith(("recipe", "fp32", "fp16 ", "tf32 ("))
    ]
    assert max(map(len, rows)) <= 80


def test_the_page_frames_them_and_names_their_source(compared):
    # Curves of losses, which scripts draw, may hold any digits.
    text = re.sub(r"<script.*?</script>", "", page(*compared), flags=re.DOTALL)
    section = re.search(r'<section class="predicted".*?</section>', text, re.DOTALL).group()
    elsewhere = re.sub(
        r"<(script|style|svg)\b.*?</\1>", "", text.replace(section, ""), flags=re.DOTALL
    )
    for figure in FIGURES:
        assert f"{MARK}{figure}" in section
        assert figure not in elsewhere
    # The recipe, and the accuracy, which was measured, bear no mark.
    labels = re.findall(r'data-label="([^"]+)"', section)
    assert {label for label in labels if not label.startswith((MARK, "predicted"))} == {
        "best % measured"
    }
    data = json.loads(json.dumps(as_json(*compared)))
    of_reference = (REFERENCE.value, 5555 * 2**20, "host")
    for source in re.findall(r'data-source="comparison\.json#([^"]+)"', section):
        found = data
        for part in source.split("."):
            found = found[int(part)] if isinstance(found, list) else found[part]
        assert found in (SECONDS.value, SPEED.value, MEMORY, "compute", *of_reference)


def test_programs_find_them_apart_from_the_rows_and_read_them_back(compared):
    grid, results, predicted = compared
    data = json.loads(json.dumps(as_json(*compared), allow_nan=False))
    assert data["rows"] == json.loads(json.dumps(as_json(grid, results)))["rows"]
    of_gpu = data["predicted"]["h100_sxm"]
    assert of_gpu["measured"] is False
    assert tuple(map(Predicted.from_json, of_gpu["rows"])) == predicted[0].rows
    figures = {
        name for name, value in of_gpu["rows"][0].items() if isinstance(value, dict | float | int)
    }
    assert all(name.startswith(("predicted_", "unknown")) for name in figures)
    assert "predicted" not in csv_text(grid, results)
