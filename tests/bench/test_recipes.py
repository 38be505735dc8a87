"""`halfstep bench recipes`: measured on a GPU, predicted on a CPU, and why a row is slow."""

from __future__ import annotations

import json

import pytest
import torch
from rich.console import Console
from torch import nn

from halfstep.bench import recipe_rows, recipes
from halfstep.bench.recipe_rows import NOT_CUDNN, PACKING, ROUNDING, Row, why_slow
from halfstep.bench.report import page
from halfstep.errors import UserError

QUIET = Console(quiet=True)
MS = {
    "tf32": 81.2, "bf16": 54.5, "fp16": 42.1, "half-bn32": 41.3, "half": 52.0, "bf16-sr": 64.1,
    "fp16+act4": 136.5,
}  # fmt: skip
"""ResNet-50 on an H200, in eager mode."""


def rows() -> list[Row]:
    return [Row(name, 256, ms / 1000, 2**33, None, 81.2 / ms) for name, ms in MS.items()]


def reasons(model: nn.Module, *, measured: bool = True) -> dict[str, str]:
    return {row.recipe: why_slow(row, rows(), model, measured=measured) for row in rows()}


def test_slow_rows_say_why():
    assert reasons(nn.BatchNorm2d(3)) == {
        "tf32": "", "fp16": "", "half-bn32": "",
        "bf16": NOT_CUDNN, "half": NOT_CUDNN,
        "bf16-sr": f"{NOT_CUDNN}; {ROUNDING}", "fp16+act4": PACKING,
    }  # fmt: skip


def test_batch_norm_is_no_reason_in_a_transformer_or_a_prediction():
    for found in (reasons(nn.LayerNorm(3)), reasons(nn.BatchNorm2d(3), measured=False)):
        assert found["bf16"] == ""
        assert found["bf16-sr"] == ROUNDING


def test_the_largest_batch_follows_from_two_peaks():
    assert recipes.largest({128: 5 * 2**30, 256: 9 * 2**30}, 137 * 2**30) == 128 + 132 * 32
    assert recipes.largest({1: 2**30}, 2**36) is None


def bench(model: str = "timm:test_resnet", **settings):
    given = {
        "batch": 8, "size": 64, "recipes": "tf32,fp16,fp16+act4", "device_name": "cpu",
        "gpu": "h100", "console": QUIET,
    }  # fmt: skip
    return recipes.bench(model, **given | settings)


def test_a_cpu_predicts_and_says_so():
    found = bench()
    assert [row[0].text for row in found.rows] == ["tf32", "fp16"]
    assert found.figures["predicted"]
    assert "Predicted for one H100" in found.notes[0]
    assert "Cannot be predicted on a CPU: fp16+act4." in found.notes
    of_fp16 = json.loads(json.dumps(found.as_json()))["rows"]["fp16"]
    assert of_fp16["images_per_second"] == pytest.approx(8 / of_fp16["seconds"])
    assert of_fp16["largest"] > 8
    assert "fp16" in page(found)
    assert len(found.bars) == 2


def test_a_gpu_measures_each_recipe_twice(monkeypatch):
    """The steps are replaced; what they give becomes the table, and one that does not fit a row."""
    steps = []

    def steps_of(model, state, recipe, batch, size, device):
        steps.append((recipe.name, batch))
        if recipe.name == "tf32":
            raise torch.OutOfMemoryError
        return [0.04, 0.05, 0.06], batch * 2**20

    monkeypatch.setattr(recipes, "steps_of", steps_of)
    monkeypatch.setattr(recipes, "pick_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(recipes, "subject", lambda *_: recipe_rows_subject())
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (0, 2**40))
    found = bench(device_name="cuda", recipes="fp16,tf32")
    assert steps == [("fp16", 4), ("fp16", 8), ("tf32", 4)]
    of_fp16, of_tf32 = found.figures["rows"].values()
    assert of_fp16["seconds"] == 0.05
    assert of_fp16["largest"] == 2**20
    assert not of_tf32["fits"]
    assert of_tf32["why"] == "does not fit"
    assert not found.figures["predicted"]


def recipe_rows_subject():
    from halfstep.bench.outcome import Subject

    return Subject("recipes", "test_resnet", (), "cuda", {})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recipes": "fp17"}, "--recipes is 'fp17'"),
        ({"model": "resnet5"}, "resnet5"),
        ({"gpu": "voodoo"}, "voodoo"),
    ],
)
def test_bad_input_is_refused_in_a_line(settings, said):
    with pytest.raises(UserError, match=said):
        bench(**settings)


def test_no_row_that_fits_is_said():
    found = recipe_rows._recommendation([Row("fp16", 8, None, None, None, None, fits=False)])
    assert "smaller --batch" in found
