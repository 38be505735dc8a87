"""`halfstep.compare`: a comparison of a program's own objects."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import halfstep
from halfstep.compare.cells.results import Spread
from halfstep.compare.plan.grid import build_grid
from halfstep.compare.plan.score import Score
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import NO_WORSE, WORSE, verdicts
from halfstep.train.objects.fit import fit

from .synthetic import summary

calls: list[int] = []


def build(seed):
    """Return a small regression, whose initial weights depend on the seed."""
    calls.append(seed)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 4, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh())
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_loader": DataLoader(data, 6, shuffle=True),
        "val_loader": DataLoader(data, 12),
        "loss": functional.mse_loss,
        "metrics": {"mae": functional.l1_loss},
        "epochs": 1,
    }


def compare(out, function=build, recipes=("fp32", "bf16"), **arguments):
    given = {"seeds": 2, "margin": 0.5, "device": "cpu", "out": out, "quiet": True} | arguments
    return halfstep.compare(function, recipes, **given)


def test_the_runs_are_those_of_fit_and_are_kept(tmp_path, capsys):
    del calls[:]
    compared = compare(tmp_path / "compared", quiet=False)
    assert calls == [0, 0, 0, 1, 1]  # the first shows what is monitored
    torch.manual_seed(1)
    alone = fit(**build(1), recipe="bf16", seed=1, device="cpu", out=tmp_path / "alone", quiet=True)
    (mine,) = [
        each for each in compared.results if (each.cell.recipe, each.cell.seed) == ("bf16", 1)
    ]
    assert mine.summary["best_metrics"] == alone.best
    losses = {
        (each.cell.recipe, each.cell.seed): each.summary["best_metrics"]["loss"]
        for each in compared.results
    }
    gains = [losses["fp32", seed] - losses["bf16", seed] for seed in (0, 1)]
    assert compared.rows[1].difference.mean == pytest.approx(sum(gains) / 2)
    (verdict,) = compared.verdicts
    assert verdict.answer == NO_WORSE
    printed = capsys.readouterr().out
    assert "bf16: no worse by more than the margin" in printed
    assert "in loss compared with fp32" in printed
    table = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    assert table["score"] == {"name": "loss", "less_is_better": True}
    assert "val_score" in (tmp_path / "compared" / "report.html").read_text()

    del calls[:]
    again = compare(tmp_path / "compared", seeds=3)
    assert calls == [0, 2, 2]
    assert [each.status for each in again.results] == ["finished"] * 6


def test_an_exception_is_the_result_of_its_run(tmp_path):
    def fails_once(seed):
        given = build(seed)
        if seed == 1:
            given["loss"] = lambda outputs, targets: outputs @ targets
        return given

    compared = compare(tmp_path, fails_once, ["fp32"])
    assert [each.status for each in compared.results] == ["finished", "crashed"]
    assert "RuntimeError" in compared.results[1].reason
    assert "outputs @ targets" in (tmp_path / "fp32-seed1" / "stderr.log").read_text()


def test_another_recipe_of_the_same_name_runs_again(tmp_path):
    compare(tmp_path, recipes=["fp32", {"name": "mine", "base": "fp16", "loss_scale": 8}], seeds=1)
    del calls[:]
    compare(tmp_path, recipes=["fp32", {"name": "mine", "base": "fp16", "loss_scale": 4}], seeds=1)
    assert calls == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"function": 3}, "build is a int; allowed: a function"),
        ({"function": lambda: None}, "build returned a NoneType; allowed: a mapping"),
        ({"function": lambda: {"model": 1}}, "build returned no optimizer and no train_loader"),
        ({"function": lambda: {"modell": 1}}, "build returned 'modell'.*did you mean 'model'"),
        ({"function": lambda: {"seed": 1}}, "build returned 'seed', which compare sets"),
        ({"function": lambda: build(0) | {"loss": 1}}, "loss is 1; allowed: a function"),
        ({"recipes": "fp32,fp16"}, "recipes is 'fp32,fp16'; allowed: a list"),
        ({"recipes": ["fp32", "fp61"]}, "fp61"),
        ({"recipes": ["fp32", "fp32"]}, "recipes has 'fp32' twice"),
        ({"recipes": []}, "recipes is empty"),
        ({"seeds": 0}, "seeds is 0; allowed: how many"),
        ({"seeds": [1, 1]}, r"seeds is \[1, 1\]; allowed"),
        ({"margin": None}, "margin is not given, and recipes are judged by 'loss'"),
        ({"margin": -1}, "margin is -1; allowed: a number above 0"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(tmp_path, arguments, said):
    with pytest.raises((TypeError, ValueError), match=said) as raised:
        compare(tmp_path, **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("less_is_better", [True, False])
def test_a_metric_is_judged_in_its_own_unit_and_direction(tmp_path, less_is_better):
    """The values of fp16 are higher by 2, with a margin of 1."""
    score = Score("error", less_is_better)
    grid = build_grid(
        "own",
        device="cpu",
        recipes=["fp32", "fp16"],
        seeds=range(4),
        options=(),
        directory=tmp_path,
        resolve=lambda recipe, seed, point: {"recipe": recipe},
        margin=1.0,
        score=score,
        program="build",
    )
    from halfstep.compare.cells.results import from_summary

    results = [
        from_summary(
            cell,
            summary(
                best_accuracy=None,
                best_metrics={"error": 10 + 0.01 * cell.seed + 2 * (cell.recipe == "fp16")},
            ),
        )
        for cell in grid.cells
    ]
    rows = rows_by_arm(grid, results)
    assert rows[0].measures["best_metrics.error"] == Spread.over([10.0, 10.01, 10.02, 10.03])
    assert rows[1].difference.mean == pytest.approx(-2.0 if less_is_better else 2.0)
    (verdict,) = verdicts(grid, rows)
    assert verdict.answer == (WORSE if less_is_better else NO_WORSE)
    assert f"2 {'worse' if less_is_better else 'better'} in error" in verdict.finding or (
        "equal" in verdict.finding
    )
