"""What one seed settles: facts, the caveat once, and commands."""

import io

import pytest
from rich.console import Console

from compare.synthetic import fill, summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.output.table import show
from halfstep.compare.plan.grid import Arm
from halfstep.compare.rows.one_seed import conclusions
from halfstep.compare.rows.predicted import Figure, Predicted, Prediction
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import ONE_SEED


@pytest.fixture
def found(make_grid):
    """Settle a comparison of one seed: each recipe with the images of 450 that it got right."""

    def settle(predicted=(), **right):
        grid = make_grid(tuple(right))
        results = [
            from_summary(
                cell,
                summary(best_accuracy=right[cell.recipe] / 450, val_images=450, skipped_steps=0),
            )
            for cell in grid.cells
        ]
        return conclusions(grid, rows_by_arm(grid, results), predicted)

    return settle


def there(bound="host", **speed_ups):
    rows = [
        Predicted(
            Arm(name, ()),
            "x",
            Figure(0.001, 0.001, 0.001),
            Figure(each, each, each),
            bound=bound,
            verdict="" if each >= 1.05 else "no gain",
        )
        for name, each in speed_ups.items()
    ]
    return [Prediction("h100", "H100", 80, "tf32", tuple(rows))]


def test_what_one_seed_cannot_tell_from_chance_is_counted_in_images(found):
    facts = found(fp32=448, fp16=446, bf16=449).facts
    assert facts[:2] == (
        "All 3 runs finished, and no loss was inf or NaN.",
        (
            "Correctly classified validation images (of 450), compared with fp32: -2 under fp16, "
            "+1 under bf16. Each of these differences may be chance."
        ),
    )


@pytest.mark.parametrize(("right", "is_worse"), [(438, True), (442, False)])
def test_a_loss_beyond_chance_is_said_of_the_row(found, right, is_worse):
    # With 2 + 12 errors chance explains 1.96 sqrt(14) = 7.3 images, with 2 + 8 errors 6.2.
    facts = found(fp32=448, fp16=right).facts
    assert (
        "fp16 classifies 10 fewer validation images (of 450) correctly than fp32 (-2.22 points)"
        in " ".join(facts)
    ) is is_worse


@pytest.mark.parametrize(("right", "is_better"), [(448, True), (444, False)])
def test_a_gain_beyond_chance_is_not_listed_among_differences_that_may_be_chance(
    found, right, is_better
):
    _, accuracy, *_ = found(fp32=438, fp16=right).facts
    assert accuracy.startswith(
        "fp16 classifies 10 more validation images (of 450) correctly than fp32 (+2.22 points). "
        if is_better
        else "Correctly classified validation images (of 450), compared with fp32: "
    )


def test_the_next_command_is_for_the_fastest_row_that_lost_nothing(found):
    found = found(there(fp32=1.0, fp16=1.8, bf16=1.7, o2=2.0), fp32=448, fp16=446, bf16=449, o2=400)
    assert found.commands[0][0] == "halfstep compare digits --recipes fp32,fp16 --seeds 3"
    assert found.commands[1][0] == "halfstep advise digits --gpu h100"
    assert "Prediction for H100 (nothing ran there): o2 has the largest speed-up" in found.facts[-1]


def test_a_small_model_is_said_to_be_bound_by_the_host(found):
    facts = found(there(fp32=1.0, fp16=0.6), fp32=448, fp16=448).facts
    assert facts[1].startswith(
        "Correctly classified validation images (of 450), compared with fp32: 0 under fp16. "
    )
    assert facts[-1].endswith(
        "no recipe is faster than tf32, because the CPU takes longer to launch the kernels than "
        "the GPU to run them."
    )
    other = found(there("memory", fp32=1.0, fp16=0.6), fp32=448, fp16=448).facts
    assert other[-1].endswith("no recipe is faster than tf32.")


@pytest.mark.parametrize(("right", "there_too"), [(446, "o2"), (400, "fp16")])
def test_the_answer_names_the_recipe_to_use_here_and_on_the_gpu(found, right, there_too):
    found = found(there(fp32=1.0, fp16=1.8, o2=2.0), fp32=448, fp16=446, o2=right)
    assert found.answer == (
        "Recipe to use, as far as one seed tells: fp32 on this machine, "
        f"{there_too} on H100 (predicted)."
    )


def test_a_recipe_that_is_faster_here_is_the_one_to_use_here(make_grid):
    grid = make_grid(("fp32", "fp16"))
    rows = rows_by_arm(grid, fill(grid))
    (row,) = (each for each in rows if not each.is_baseline)
    assert not row.rehearsed
    assert row.speed.mean > 1.05
    found = conclusions(grid, rows)
    assert found.answer == "Recipe to use, as far as one seed tells: fp16 on this machine."


def test_speeds_relative_to_a_rehearsed_baseline_are_not_told(make_grid):
    grid = make_grid(("bf16", "fp16"))
    rows = rows_by_arm(grid, fill(grid))
    (base,) = (each for each in rows if each.is_baseline)
    assert base.rehearsed
    found = conclusions(grid, rows)
    rehearsed = "Rehearsed (emulated) on this machine: bf16. "
    assert any(each.startswith(rehearsed) for each in found.facts)
    assert not any(each.startswith("Speed on this machine") for each in found.facts)
    assert not found.answer


def test_rows_that_broke_are_facts_and_keep_their_verdict(make_grid):
    grid = make_grid(("fp32", "fp16", "o3", "bf16"))
    found = conclusions(grid, rows_by_arm(grid, fill(grid)))
    assert found.facts[0] == (
        "3 of 4 runs had only finite losses. The other runs, with the step of their first "
        "non-finite loss: o3 (step 12)."
    )
    assert [each.label for each in found.verdicts] == ["o3"]
    assert "Optimizer steps skipped because of inf or NaN gradients: 2 under fp16." in found.facts
    assert "Speed on this machine, relative to the baseline: 2.40x under fp16." in found.facts
    rehearsed = "Rehearsed (emulated) on this machine: bf16. "
    assert any(fact.startswith(rehearsed) for fact in found.facts)


def test_runs_without_a_count_of_images_are_told_in_points(make_grid):
    grid = make_grid(("fp32", "fp16"))
    full, half = grid.cells
    results = [
        from_summary(full, summary(best_accuracy=0.98)),
        from_summary(half, summary(best_accuracy=0.97)),
    ]
    found = conclusions(grid, rows_by_arm(grid, results))
    # Chance cannot be judged without the number of images.
    assert (
        "Differences of the best accuracy, compared with fp32, in points: -1.00 under fp16."
        in found.facts
    )
    # A loss that may be more than chance: no row is worth more seeds.
    assert found.commands[0][0].startswith("halfstep advise")


def test_several_seeds_and_nothing_to_compare_are_left_to_the_verdicts(make_grid):
    several = make_grid(("fp32", "fp16"), (0, 1))
    assert conclusions(several, rows_by_arm(several, fill(several))) is None
    alone = make_grid(("fp32", "fp16"))
    pending = [Result(cell, "pending") for cell in alone.cells]
    assert conclusions(alone, rows_by_arm(alone, pending)) is None


def test_a_terminal_says_the_caveat_once_and_ends_with_commands(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16", "o3"))
    file = io.StringIO()
    show(Console(file=file, width=80, force_terminal=True, color_system=None), grid, fill(grid))
    text = file.getvalue()
    assert text.count("One seed cannot tell") == 1
    assert ONE_SEED not in text
    assert "o3: worse; nonfinite" in text
    assert "\n  halfstep compare digits --recipes fp32,fp16 --seeds 3\n" in text
