"""`halfstep.train`, `evaluate` and `predict`: what the commands do, from Python."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import halfstep
from halfstep import caller
from halfstep.cli import main
from halfstep.cli.front_end import CommandLine
from halfstep.train.config.files import load
from halfstep.train.loop import loop
from halfstep.train.store import checkpoint
from halfstep.train.store.run_directory import read_summary

SHORT = {"epochs": 1, "schedule.name": "constant"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_is_the_commands_run(tiny_file, tmp_path, finished_run):
    summary = halfstep.train(tiny_file, quiet=True)
    run = tmp_path / "runs" / "tiny" / "fp32-seed0"
    assert read_summary(run)["final_accuracy"] == summary.final_accuracy
    theirs = read_summary(finished_run)
    assert (summary.final_val_loss, summary.steps) == (theirs["final_val_loss"], theirs["steps"])


def test_overrides_are_by_dotted_name_and_of_python(tiny_file):
    overrides = {**SHORT, "optimizer.lr": 1e-05, "recipe": "fp16", "early_stopping": None}
    halfstep.train(tiny_file, overrides=overrides, out="run", quiet=True)
    stored = checkpoint.load(checkpoint.path(Path("run"), "last")).config
    assert (stored["optimizer"]["lr"], stored["recipe"]) == (1e-05, "fp16")


def test_a_mapping_is_a_config_and_may_have_a_base(tiny, tiny_file):
    from_mapping = halfstep.train(
        {"base": str(tiny_file), "name": "mine", "epochs": 1}, quiet=True, out="mapping"
    )
    assert (from_mapping.config, from_mapping.epochs) == ("mine", 1)
    from_config = halfstep.train(tiny("epochs=1"), quiet=True, out="config")
    assert from_config.final_val_loss == from_mapping.final_val_loss


def test_a_run_goes_on_and_is_watched(tiny_file):
    class Steps(halfstep.Observer):
        def __init__(self):
            self.seen = []

        def stepped(self, step, result):
            self.seen.append(step)

    halfstep.train(tiny_file, overrides=SHORT, out="run", quiet=True)
    longer, steps = {**SHORT, "epochs": 2}, Steps()
    summary = halfstep.train(
        tiny_file, overrides=longer, out="run", quiet=True, resume="auto", observers=[steps]
    )
    assert summary.epochs == 2
    assert steps.seen == [7, 8, 9, 10, 11, 12]
    with pytest.raises(
        ValueError, match=r'write resume="auto" to take its result, .*overwrite=True to'
    ):
        halfstep.train(tiny_file, overrides=longer, out="run", quiet=True)


@pytest.fixture
def loaded(monkeypatch):
    """Return the config that a call of `halfstep.train` would train."""

    def config_of(*given, **named):
        configs = []
        with monkeypatch.context() as patch:
            patch.setattr(loop, "train", lambda config, *_, **__: configs.append(config))
            halfstep.train(*given, **named)
        return configs[0]

    return config_of


def test_recipe_seed_and_device_are_those_of_the_flags(loaded, tiny_file):
    flags = {"recipe": "bf16", "seed": 3, "device": "cpu"}
    assert loaded(tiny_file, **flags) == load(str(tiny_file), (), flags)
    assert loaded(tiny_file, device=torch.device("cuda", 1)).device == "cuda:1"


MINE = halfstep.Recipe("mine", params="fp16", norms="fp32")


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        ("o2", "o2"),
        (halfstep.recipe("o2"), "o2"),
        (halfstep.recipe("bf16+act4"), "bf16+act4"),
        (MINE, {"name": "mine", "params": "fp16", "norms": "fp32"}),
        (halfstep.Recipe("fp16", params="bf16"), {"name": "fp16", "params": "bf16"}),
        ({"base": "o2", "outputs": None}, {"base": "o2", "outputs": None}),
    ],
)
def test_a_recipe_has_any_form_that_halfstep_recipe_takes(loaded, tiny_file, recipe, wanted):
    for config in (
        tiny_file,
        {"base": str(tiny_file), "recipe": {"base": "fp16", "norms": "fp32"}},
    ):
        chosen = loaded(config, recipe=recipe)
        assert chosen.recipe == wanted
        assert chosen.build_recipe() == halfstep.recipe(recipe)


def test_a_recipe_may_be_in_a_file(loaded, tiny_file, tmp_path):
    (tmp_path / "t4.yaml").write_text("recipe: o2\n")
    assert loaded(tiny_file, recipe="t4.yaml").recipe == "o2"
    assert loaded(tiny_file, recipe=tmp_path / "t4.yaml").recipe == "o2"


def test_values_of_python_are_those_of_yaml(loaded, tiny_file, tmp_path):
    augment = {"mean": (0.5,), "std": [0.25]}
    overrides = {"data": {"name": "folder", "root": tmp_path, "augment": augment}, "model.args": {}}
    data = json.dumps({"name": "folder", "root": str(tmp_path), "augment": augment})
    wanted = load(str(tiny_file), [f"data={data}", "model.args={}"])
    assert loaded(tiny_file, overrides=overrides) == wanted
    mapping = {"base": tiny_file, "name": "tiny", "data": overrides["data"], "model": {"args": {}}}
    assert loaded(mapping) == wanted


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        ("digit", {}, "no config is named 'digit'.*did you mean 'digits'"),
        ({"epochs": 1}, {}, "config: batch_size is missing"),
        ("digits", {"optimizer.rate": 1}, "overrides: no key is named 'optimizer.rate'"),
        (
            "digits",
            {"optimizer rate": 1},
            "overrides has the key 'optimizer rate'; allowed: the na",
        ),
        ("digits", {3: 1}, "overrides has the key 3; .*write overrides={.optimizer.lr.: 0.02}"),
        (
            "digits",
            {"optimizer.lr": object},
            "overrides: optimizer.lr is <class 'object'>; allowed",
        ),
    ],
)
def test_a_mistake_is_a_value_error_in_a_line(config, overrides, said):
    with pytest.raises(ValueError, match=said) as caught:
        halfstep.train(config, overrides=overrides)
    assert "\n" not in str(caught.value)


def test_overrides_of_another_type_are_refused():
    with pytest.raises(
        TypeError, match=r"overrides is \['epochs=3'\]; allowed: a mapping of fields"
    ):
        halfstep.train("digits", overrides=["epochs=3"])


def test_a_program_that_a_command_runs_is_told_in_python():
    with caller.through(CommandLine()):
        with pytest.raises(ValueError, match='write tag="baseline"'):
            halfstep.train("digits", tag="a/b")
        assert caller.name("tag") == "--tag"


def run_json(capsys, *arguments):
    """Return what a command prints as JSON."""
    capsys.readouterr()
    main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def test_evaluate_returns_what_the_command_prints(finished_run, tmp_path, capsys):
    metrics = halfstep.evaluate(finished_run, checkpoint="last", device="cpu")
    told = run_json(capsys, "eval", finished_run, "--checkpoint", "last")
    assert metrics == {**told.pop("measured"), **told}
    summary = read_summary(finished_run)
    assert (metrics["accuracy"], metrics["matches"]) == (summary["final_accuracy"], True)
    Image.new("L", (8, 8), 99).save(tmp_path / "a.png")
    (tmp_path / "more.csv").write_text("file,image,label\na.png,0,3\nb.png,0,5\n")
    metrics = halfstep.evaluate(
        str(finished_run), data="more.csv", columns={"image": "file", "label": "label"}
    )
    assert metrics["recall"] == {"3": metrics["accuracy"]}
    assert (metrics["recorded"], metrics["matches"], len(metrics["unreadable"])) == (None, None, 1)


def test_predict_returns_what_the_command_prints(finished_run, tmp_path, capsys):
    for name, shade in (("a.png", 0), ("b.png", 200)):
        Image.new("L", (8, 8), shade).save(tmp_path / name)
    found = halfstep.predict(finished_run, "a.png")
    assert main(["predict", str(finished_run), "a.png"]) == 0
    assert capsys.readouterr().out == found.csv()
    both = halfstep.predict([finished_run, finished_run], ["b.png", Path("a.png")], flip=True)
    assert [name for name, _ in both.labels] == ["b.png", "a.png"]
    assert [sum(each) for each in both.probabilities] == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: halfstep.evaluate("nowhere"), "'nowhere' is not a run directory"),
        (
            lambda run: halfstep.evaluate(run, checkpoint="worst"),
            "named 'worst'; allowed: best, last",
        ),
        (lambda run: halfstep.predict(run, "no.png"), "no.png"),
        (
            lambda run: halfstep.predict(run, "a", checkpoint="first"),
            "named 'first'; allowed: best",
        ),
        (
            lambda run: halfstep.predict(run, "a.csv", columns={"images": "file"}),
            r"columns is \{'images': 'file'\}; allowed: image, label, split, .*columns=\{'image'",
        ),
        (
            lambda run: halfstep.predict(run, "a.csv"),
            r"columns=\{'image': 'file'\} beside a CSV file",
        ),
    ],
)
def test_what_evaluate_and_predict_cannot_do_is_told_in_python(finished_run, call, said):
    Path("a.csv").write_text("file,kind\na.png,3\n")
    with pytest.raises(ValueError, match=said) as caught:
        call(finished_run)
    assert "--" not in str(caught.value)


def test_the_package_is_still_a_package():
    assert halfstep.train.loop.loop is loop
