"""A wrong option, command, value or extra argument is answered with what to write instead."""

import shlex
from pathlib import Path

import pytest
import typer

from halfstep.cli import app
from halfstep.cli.command_line import commands
from halfstep.cli.export import _Format
from halfstep.cli.suggestions import COMMANDS, OPTIONS, VALUES

PROGRAM = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        # Commands: other words, commands of a group, configs, similar words.
        ("list", "halfstep recipes, halfstep configs or halfstep runs"),
        ("config list", "halfstep recipes, halfstep configs or halfstep runs"),
        ("evaluate runs/x", "halfstep eval RUN"),
        ("folds all.csv", "halfstep data folds"),
        ("digits", "halfstep train digits"),
        ("trian digits", "halfstep train"),
        ("data fold", "halfstep data folds"),
        # Options: other words, recipes, fields of the config.
        ("train digits --amp", "--recipe fp16"),
        ("train --amp digits", "--recipe fp16"),
        ("compare digits --amp", "--recipes fp32,fp16"),
        ("train digits --bf16-sr", "--recipe bf16-sr"),
        ("train digits --learning-rate 0.1", "--lr 0.1"),
        ("train digits --epoch 3", "--epochs 3"),
        ("train digits -b 32", "--batch-size 32"),
        ("train --force digits", "--overwrite"),
        ("compare digits --force", "--fresh"),
        ("train --config digits", "halfstep train digits"),
        ("train digits --clip-norm 1", "--options clip_norm=1"),
        ("train digits --label_smoothing=0.1", "--options label_smoothing=0.1"),
        ("train digits --data.workers 4", "--options data.workers=4"),
        ("train digits --augment.preset", "--options data.augment.preset=..."),
        ("train digits --optimizer adamw", "--options optimizer.name=adamw"),
        # Values.
        ("export run --format tflite", "--format onnx, which onnx2tf converts"),
        ("export run --format=TorchScript", "--format torch"),
        ("export run --format onxx", "--format onnx"),
        ("eval run --checkpoint latest", "--checkpoint last"),
        # Extra arguments: further values of the option before them.
        ("train digits --options optimizer.lr 0.1", "--options optimizer.lr=0.1"),
        ("train --options optimizer.lr 0.1 digits", "--options optimizer.lr=0.1"),
        ("train digits --options optimizer.lr = 0.1", "--options optimizer.lr=0.1"),
        ("train digits --options optimizer.lr: 0.1", "--options optimizer.lr=0.1"),
        ("train digits --options epochs 3 batch_size=8", "--options epochs=3 batch_size=8"),
        ("train digits --options=epochs 3 --seed 1", "--options epochs=3"),
        ("compare digits --recipes fp32 fp16", "--recipes fp32,fp16"),
        ("compare digits --recipes fp32, fp16 bf16", "--recipes fp32,fp16,bf16"),
        ("compare --recipes fp32 fp16 digits", "--recipes fp32,fp16"),
        ("compare --fresh --recipes=fp32 fp16 digits", "--recipes fp32,fp16"),
        ("compare digits --seeds 0 1 2 --grid lr 1 2", "--seeds 0,1,2 --grid lr=1,2"),
        ("data folds a.csv --columns image=a label=b", "--columns image=a,label=b"),
        ("train digits fp16", "--recipe fp16"),
        ("compare digits fp16 bf16", "--recipes fp16,bf16"),
        ("train digits epochs=3 seed=1", "--options epochs=3 seed=1"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(halfstep, typed, written):
    code, out, err = halfstep(*shlex.split(typed))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"; write {written}; see halfstep" in err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train digits --zebra", "No such option: --zebra; see halfstep train --help"),
        ("predict run x --amp", "No such option: --amp; see halfstep predict --help"),
        ("train digits one two", "extra argument(s) (one two); see halfstep train --help"),
        ("env now", "extra argument(s) (now); see halfstep env --help"),
        ("zebra", "No such command 'zebra'; see halfstep --help"),
        ("train digits --seed", "Option '--seed' requires an argument; see"),
        ("train digits --epochs few", "Invalid value for '--epochs': 'few'"),
        ("train digits --tag x y", "extra argument(s) (y); see"),
    ],
)
def test_nothing_is_suggested_where_nothing_is_known(halfstep, typed, said):
    code, _, err = halfstep(*typed.split())
    assert code == 2
    assert said.replace("(s)", "") in err.replace("(s)", "")
    assert "; write" not in err


def test_a_config_file_is_trained_by_the_command_of_that_name(halfstep):
    Path("pets.yaml").write_text("base: digits\n")
    assert "; write halfstep train pets.yaml;" in halfstep("pets.yaml")[2]


def groups():
    return {"": PROGRAM, **commands(PROGRAM)}


@pytest.mark.parametrize("written", [each for row in COMMANDS.values() for each in row])
def test_every_suggested_command_exists(written):
    first, *rest = written.split()
    if first.startswith("-"):
        assert first in {flag for each in PROGRAM.params for flag in (*each.opts, "--help")}
        return
    group = commands(PROGRAM)[first]
    assert not commands(group) or rest[0] in commands(group)


def test_every_suggested_option_is_one_of_some_command_and_every_word_stands_once():
    leaves = [each for group in groups().values() for each in commands(group).values()]
    options = {name for each in leaves for param in each.params for name in param.opts}
    named = {param.metavar for each in leaves for param in each.params}
    for row in OPTIONS.values():
        assert all(each.split()[0] in options | named for each in row)
    for table in (COMMANDS, OPTIONS, *VALUES.values()):
        words = " ".join(table).split()
        assert len(words) == len(set(words))


def test_every_suggested_format_can_be_exported():
    assert {each.split(",")[0] for each in VALUES["--format"].values()} <= {*_Format}
