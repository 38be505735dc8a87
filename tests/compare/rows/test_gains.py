"""One advice, from the accuracy and from the gain: measured here, predicted for GPUs."""

import io
import json
import re

import pytest
from rich.console import Console

from compare.synthetic import summary
from halfstep.compare.cells.results import from_summary
from halfstep.compare.output.records import as_json
from halfstep.compare.output.report.page import page
from halfstep.compare.output.table import show
from halfstep.compare.output.texts import markdown
from halfstep.compare.plan.grid import Arm
from halfstep.compare.rows.gains import predicted_remark
from halfstep.compare.rows.predicted import Figure, Predicted, Prediction
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import NO_WORSE, WORSE, verdicts


def there(gpu="H100", over="tf32", remarks=None, **speed_ups):
    """Predict the speed-ups of recipes on a GPU; a recipe may have a remark besides "no gain"."""
    rows = [
        Predicted(
            Arm(name, ()),
            "x",
            Figure(0.001, 0.001, 0.001),
            Figure(each, each, each),
            1,
            "host",
            (remarks or {}).get(name, "" if each >= 1.05 else "no gain"),
        )
        for name, each in speed_ups.items()
    ]
    return Prediction(gpu.lower(), gpu, 80, over, tuple(rows))


@pytest.fixture
def compared(make_grid):
    """Compare recipes over three seeds, with one speed and accuracy gained over the first."""

    def compare(recipes=("fp32", "fp16"), rehearsed=(), speed=1.0, gained=0.0):
        grid = make_grid(recipes, range(3))
        results = [
            from_summary(
                cell,
                summary(
                    best_accuracy=0.96 + 0.0001 * cell.seed + gained * (cell.recipe != recipes[0]),
                    images_per_second=100.0 if cell.recipe == recipes[0] else 100.0 * speed,
                    rehearsed=["not here"] if cell.recipe in rehearsed else [],
                    val_images=10_000,
                ),
            )
            for cell in grid.cells
        ]
        return grid, results

    return compare


@pytest.fixture
def judged(compared):
    def judge(*predicted, **changes):
        grid, results = compared(**changes)
        return [
            (verdict.answer, verdict.advice)
            for verdict in verdicts(grid, rows_by_arm(grid, results), predicted)
        ]

    return judge


SLOW, FAST = there(fp32=0.9, fp16=0.47), there(fp32=0.9, fp16=1.8)
T4 = there("T4", "fp32", fp32=1.0, fp16=2.5)
MEASURE = "and measure the speed there"


@pytest.mark.parametrize(
    ("predicted", "verdict"),
    [
        ((), (NO_WORSE, f"train with fp16 on hardware that supports it, {MEASURE}")),
        ((SLOW,), (NO_WORSE, "keep fp32: no gain on H100 (predicted)")),
        ((FAST,), (NO_WORSE, f"train with fp16 on H100 (predicted gain), {MEASURE}")),
        (
            (FAST, T4),
            (NO_WORSE, f"train with fp16 on H100 and T4 (predicted gain), {MEASURE}"),
        ),
        (
            (SLOW, T4),
            (
                NO_WORSE,
                f"train with fp16 on T4 (predicted gain), {MEASURE}; no gain on H100 (predicted)",
            ),
        ),
        (
            (there(remarks={"fp16": "does not fit, no gain"}, fp32=0.9, fp16=0.8),),
            (NO_WORSE, "keep fp32: does not fit, no gain on H100 (predicted)"),
        ),
        # There is no prediction for the row.
        (
            (there(fp32=0.9),),
            (NO_WORSE, f"train with fp16 on hardware that supports it, {MEASURE}"),
        ),
    ],
)
def test_a_rehearsed_row_is_used_only_where_a_gain_is_predicted(judged, predicted, verdict):
    assert judged(*predicted, rehearsed=("fp16",)) == [verdict]


@pytest.mark.parametrize(
    ("predicted", "speed", "verdict"),
    [
        ((), 2.0, (NO_WORSE, "use it")),
        ((SLOW,), 2.0, (NO_WORSE, "use it on this machine; no gain on H100 (predicted)")),
        ((FAST,), 2.0, (NO_WORSE, "use it on this machine, and on H100 (predicted)")),
        (
            (SLOW,),
            1.0,
            (
                NO_WORSE,
                "keep fp32: there is nothing to gain on this device; no gain on H100 (predicted)",
            ),
        ),
        (
            (FAST,),
            1.0,
            (
                NO_WORSE,
                (
                    f"train with fp16 on H100 (predicted gain), {MEASURE}; on this machine, "
                    "keep fp32: there is nothing to gain on this device"
                ),
            ),
        ),
    ],
)
def test_a_row_that_ran_here_is_used_where_it_gains(judged, predicted, speed, verdict):
    assert judged(*predicted, speed=speed) == [verdict]


def test_a_row_that_is_more_accurate_is_used_without_a_gain(judged):
    assert judged(SLOW, rehearsed=("fp16",), gained=0.02) == [
        (NO_WORSE, "train with fp16 for its accuracy; no gain on H100 (predicted)")
    ]


def test_no_prediction_makes_up_for_a_loss(judged):
    ((kind, advice),) = judged(FAST, rehearsed=("fp16",), gained=-0.05)
    assert (kind, advice) == (WORSE, "keep fp32")


def test_a_gain_over_the_reference_is_none_over_a_faster_baseline():
    prediction = there(fp16=1.8, bf16=1.7, tf32=1.0, fp32=0.5, half=2.5)
    fp16, bf16, tf32, fp32, half = (row.arm for row in prediction.rows)
    assert predicted_remark(bf16, fp32, prediction) == ""
    assert predicted_remark(bf16, fp16, prediction) == "no gain"
    assert predicted_remark(half, fp16, prediction) == ""
    # The table compares tf32 with itself.
    assert predicted_remark(tf32, fp32, there(tf32=1.0, fp32=0.5)) == ""
    assert predicted_remark(Arm("fp8"), fp32, prediction) is None


def terminal(*compared):
    console = Console(file=io.StringIO(), width=200)
    show(console, *compared)
    return console.file.getvalue()


def as_text(*compared):
    return json.dumps(as_json(*compared))


@pytest.mark.parametrize("write", [terminal, markdown, as_text, page])
@pytest.mark.parametrize(
    ("prediction", "advice"),
    [
        (SLOW, "keep fp32: no gain on H100 (predicted)"),
        (FAST, f"train with fp16 on H100 (predicted gain), {MEASURE}"),
    ],
)
def test_all_output_has_the_same_advice(write, prediction, advice, compared):
    text = write(*compared(rehearsed=("fp16",)), [prediction])
    text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL) if write is page else text
    assert advice.lower() in text.lower()
    if write is page:
        assert re.findall(r'<span class="tag ([\w-]+)">', text) == ["no-worse"]
    if prediction is SLOW:
        assert "train with fp16" not in text.lower()


def test_programs_find_the_recipe_to_use_after_one_seed_too(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [from_summary(cell, summary(val_images=450)) for cell in grid.cells]
    found = as_json(grid, results, [SLOW])["recipe_to_use"]
    assert found == (
        "Recipe to use, as far as one seed tells: fp32 on this machine, tf32 on H100 (predicted)."
    )
    several = make_grid(("fp32", "fp16"), (0, 1))
    results = [from_summary(cell, summary()) for cell in several.cells]
    assert as_json(several, results, [SLOW])["recipe_to_use"] is None
