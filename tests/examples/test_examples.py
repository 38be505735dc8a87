"""The programs under examples/ run and show what they say."""

import importlib.util
import io
import math
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from torchvision.io import write_png

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.report.show import print_diagnosis
from halfstep.engine import EngineWarning

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def without_places(text: str) -> str:
    """Return a text without the lines and counts in which programs with one cause differ."""
    return re.sub(r"examples/\w+\.py:\d+|in \d+ of \d+", "PLACE", text)


def said_by_doctor(diagnosis) -> str:
    """Return what doctor prints, without the names and counts of this program."""
    verdict = diagnosis.verdicts[0]
    site = replace(verdict.finding.site, file="examples/a.py")
    verdict = replace(verdict, finding=replace(verdict.finding, site=site))
    text = io.StringIO()
    print_diagnosis(replace(diagnosis, verdicts=(verdict,)), text)
    return without_places("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def test_the_second_step_applies_the_gradients_that_the_scaler_skipped(monkeypatch, capsys):
    example = load("double_step")
    monkeypatch.setattr(example, "STEPS", 40)
    example.main()
    printed = capsys.readouterr().out
    ends = {line[:12].strip(): line.split()[-1] for line in printed.splitlines()[-3:]}
    assert ends == {"correct": "never", "double step": "2", "engine": "never"}
    assert "was called directly, but the engine" in printed


def test_the_double_step_on_pictures_of_leaves_is_named(tmp_path, monkeypatch):
    example = load("leaves_double_step")
    monkeypatch.setattr(example, "BATCH", 4)
    monkeypatch.setattr(example, "PIXELS", 8)
    small = partial(timm.create_model, layers=[1, 1, 1, 1], channels=[8, 8, 16, 16])
    monkeypatch.setattr(example.timm, "create_model", small)
    (tmp_path / "images").mkdir()
    rows = ["image,label"]
    for number in range(8):
        noise = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
        write_png(noise, str(tmp_path / "images" / f"{number}.png"))
        rows.append(f"images/{number}.png,species_{number % 2}")
    (tmp_path / "train.csv").write_text("\n".join(rows))
    arguments = [str(tmp_path), "--steps", "2"]
    with Watch() as observer:
        losses = example.main(arguments)
    assert not math.isfinite(losses[1])
    diagnosis = diagnose(observer.close())
    verdict = diagnosis.verdicts[0]
    assert verdict.code == "STEP_BYPASSES_SCALER"
    page = EXAMPLES.parent / "docs" / "experiments" / "double-step.md"
    assert f"  examples/leaves_double_step.py:{verdict.finding.site.line} " in page.read_text()
    said = said_by_doctor(diagnosis)
    for quoting in (page, EXAMPLES.parent / "docs" / "doctor.md"):
        assert said in without_places(quoting.read_text())
    readme = without_places((EXAMPLES.parent / "README.md").read_text())
    (excerpt,) = re.findall(r"\$ halfstep doctor .*\n((?:.*\n)*?)```", readme)
    lines = iter(said.splitlines())
    assert all(line in lines for line in excerpt.splitlines())
    assert all(map(math.isfinite, example.main([*arguments, "--mended"])))


@pytest.mark.parametrize(
    ("mended", "codes"),
    [([], ["GRADIENTS_CHANGED_WHILE_SCALED", "SCALER_NOT_SAVED"]), (["--mended"], [])],
    ids=["as it is", "mended"],
)
def test_the_gpt_that_hardly_learns_is_explained(monkeypatch, mended, codes):
    example = load("character_gpt")
    monkeypatch.setattr(example, "STEPS", 5)
    with Watch() as observer:
        losses = example.main(mended)
    assert [each.code for each in diagnose(observer.close()).verdicts] == codes
    assert (losses[0] - losses[-1] < 0.05) == (not mended)


@pytest.fixture(scope="module")
def without_loss_scale():
    return load("without_loss_scale")


@pytest.mark.parametrize("recipe", ["half", "half-bn32", "o3"])
def test_adamw_without_master_weights_divides_zero_by_zero(without_loss_scale, recipe):
    setting, data = without_loss_scale.SETTINGS["adamw"], without_loss_scale.digits()
    with pytest.warns(EngineWarning, match=r"eps = 1e-08 is 0 in fp16"):
        outcome = without_loss_scale.train(recipe, setting, data, steps=3)
    assert outcome.nonfinite_step == 2


@pytest.mark.parametrize("recipe", ["o1", "o2", "fp16"])
def test_adamw_trains_with_master_weights_and_a_loss_scale(without_loss_scale, recipe):
    setting, data = without_loss_scale.SETTINGS["adamw"], without_loss_scale.digits()
    outcome = without_loss_scale.train(recipe, setting, data, steps=30)
    assert outcome.nonfinite_step is None
    assert outcome.accuracy > 0.5


def test_gradients_of_a_small_loss_vanish_without_a_loss_scale(without_loss_scale):
    setting, data = without_loss_scale.SETTINGS["small loss"], without_loss_scale.digits()
    accuracy = {
        recipe: without_loss_scale.train(recipe, setting, data, steps=40).accuracy
        for recipe in ("fp32", "half", "fp16")
    }
    assert accuracy["half"] < accuracy["fp32"] - 0.05
    assert abs(accuracy["fp16"] - accuracy["fp32"]) < 0.03


def test_a_checkpoint_beyond_fp16_is_fine_tuned_with_one_part_in_fp32(capsys):
    losses = load("fine_tune").main(30)
    assert losses["fp16"] == []
    assert "the loss scale collapsed" in capsys.readouterr().out
    with_exception = losses["fp16, feed-forward in fp32"]
    assert losses["fp32"][-1] < losses["fp32"][0] - 1
    assert with_exception[0] == pytest.approx(losses["fp32"][0], rel=1e-3)
    assert with_exception[-1] == pytest.approx(losses["fp32"][-1], abs=0.1)


def test_a_gan_whose_halves_take_turns_finds_the_ring():
    distance, places = load("gan").main(["--steps", "200"])
    assert distance < 0.6, "1.9 before training"
    assert places == 8


def test_a_gradient_penalty_under_fp16_keeps_the_critic_at_slope_one():
    example = load("gradient_penalty")
    half, single, without = map(example.main, ([], ["--recipe", "fp32"], ["--weight", "0"]))
    assert half == pytest.approx(single, rel=0.05)
    assert half == pytest.approx((example.DISTANCE, 1.0), rel=0.2)
    assert without[0] > 5 * example.DISTANCE


def test_a_detector_with_a_scale_for_each_loss_finds_objects():
    iou, right = load("detector").main(["--steps", "80"])
    assert iou > 0.5
    assert right > 0.8


@pytest.mark.parametrize(
    ("name", "metric", "constant"),
    [
        # The mean absolute error of the median, and the overlap if every pixel is of a disc.
        ("regression", "mae", 0.60),
        ("segmentation", "iou", 0.15),
        ("language_model", "loss", math.log(28)),
    ],
)
def test_examples_of_fit_learn(name, metric, constant, capsys):
    example = load(name)
    best = example.main([]).best[metric] if name == "regression" else example.main().best[metric]
    assert best > 2 * constant if metric == "iou" else best < 0.75 * constant
    assert "/s, 0.0s left" in capsys.readouterr().out


def test_the_assertion_for_tests_passes_a_model_and_names_the_line_that_overflows(capsys):
    example = load("test_trains_in_fp16")
    example.test_the_model_trains_in_fp16()
    example.test_pixels_that_are_not_divided_are_found()
    said = capsys.readouterr().out
    assert "ACTIVATIONS_TOO_LARGE" in said
    assert "return self.layers(pixels / self.largest)" in said


@pytest.mark.parametrize(
    "program", ["lightning_recipe", "transformers_watch", "test_trains_in_fp16"]
)
def test_the_page_about_other_tools_names_their_examples(program):
    page = (EXAMPLES.parent / "docs" / "in-your-tools.md").read_text()
    assert f"examples/{program}.py" in page
    assert (EXAMPLES / f"{program}.py").is_file()
