"""`--epochs`, `--lr` and `--batch-size` set the fields of the config that `--options` also sets."""

from pathlib import Path

import pytest

from halfstep.cli.overrides import overrides
from halfstep.compare.plan import plan
from halfstep.train.config.files import load
from halfstep.yaml_text import parse

FLAGS = ["--epochs", "3", "--lr", "2e-5", "--batch-size", "64"]


def test_flags_are_the_fields_of_the_config(halfstep):
    code, out, _ = halfstep("config", "show", "digits", *FLAGS, "--options", "clip_norm=1")
    assert code == 0
    Path("shown.yaml").write_text(out)
    wanted = ["epochs=3", "optimizer.lr=0.00002", "batch_size=64", "clip_norm=1"]
    assert load("shown.yaml") == load("digits", wanted)


def test_a_run_has_them_whatever_else_its_options_say(halfstep, tiny_arguments):
    options = [each for each in tiny_arguments if not each.startswith(("epochs", "batch_size"))]
    flags = ["--epochs", "1", "--lr", "0.004", "--batch-size", "128"]
    assert halfstep("train", "digits", *options, "optimizer.name=adamw", *flags)[0] == 0
    config = parse(Path("runs/digits/fp32-seed0/config.yaml").read_text(), "config")
    assert (config["epochs"], config["batch_size"]) == (1, 128)
    assert (config["optimizer"]["name"], config["optimizer"]["lr"]) == ("adamw", 0.004)


def test_a_comparison_has_them_in_every_run(halfstep, monkeypatch):
    class Planned(Exception):  # noqa: N818
        pass

    def build_grid(config, *, resolve, options, **_):
        assert resolve("fp16", 1, ())["optimizer"]["lr"] == 2e-5
        raise Planned(options)

    monkeypatch.setattr(plan, "build_grid", build_grid)
    with pytest.raises(Planned) as planned:
        halfstep("compare", "digits", "--recipes", "fp32", "--device", "cpu", *FLAGS)
    assert planned.value.args == (["epochs=3", "optimizer.lr=2e-05", "batch_size=64"],)


@pytest.mark.parametrize("command", ["train", "compare", "config show"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--epochs 3 --options epochs=4", "--epochs 3 and --options epochs=4 both set epochs"),
        (
            "--lr 0.1 --options optimizer={name:\u00a0sgd,lr:\u00a01}",
            "--lr 0.1 and --options optimizer={name:\u00a0sgd,lr:\u00a01} both set optimizer.lr",
        ),
        ("--batch-size 8 --options batch_size=8", "both set batch_size; write one"),
        ("--epochs 0", "Invalid value for '--epochs': "),
        ("--lr -1", "--lr is -1; allowed: greater than 0; write --lr 0.1"),
        ("--lr nan", "--lr is nan; allowed: greater than 0"),
        ("--lr inf", "--lr is inf; allowed: greater than 0"),
        ("--batch-size many", "Invalid value for '--batch-size': 'many'"),
    ],
)
def test_a_field_set_twice_or_wrongly_is_one_line(halfstep, tmp_path, command, given, said):
    arguments = [each.replace("\u00a0", " ") for each in given.split(" ")]
    code, out, err = halfstep(*command.split(), "digits", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said.replace("\u00a0", " ") in err
    assert not list(tmp_path.iterdir())


def test_a_flag_and_an_axis_of_the_grid_are_not_the_same_field(halfstep):
    code, _, err = halfstep("compare", "digits", "--lr", "1", "--grid", "optimizer.lr=0.1,0.2")
    assert code == 2
    assert "--lr 1.0 and --grid optimizer.lr=0.1,0.2 both set optimizer.lr; write one" in err


def test_options_alone_may_still_repeat_a_field():
    assert overrides(["epochs=1", "epochs=2"], lr=1e-3) == [
        "epochs=1",
        "epochs=2",
        "optimizer.lr=0.001",
    ]
    assert overrides(None) == []
