"""Messages name settings as the caller writes them: options, or arguments in Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import halfstep
from halfstep import caller
from halfstep.cli import main
from halfstep.cli.front_end import CommandLine

SOURCE = Path(halfstep.__file__).parent
PARSES_A_COMMAND_LINE = "recipe/parse.py"
OF_COMMANDS = {"cli", "compare", "bench", "advise", "migrate", "apex", "doctor"}
"""The parts that only commands call; doctor's words for its own command are in its reports."""
OPTION = re.compile(r"(?<![\w-])--[a-z]")
WHOLE_COMMAND = re.compile(r"(halfstep [a-z]+|torchrun)( [^\s;,()]+)*? --[a-z][\w-]*")


def test_a_setting_is_worded_for_the_front_end_in_use():
    values = {"data.root": "my images", "epochs": 3, "data.verify": False, "clip_norm": None}
    assert caller.name("top_k") == "top_k"
    assert caller.setting(resume="auto", overwrite=True) == 'resume="auto", overwrite=True'
    assert caller.fields(values) == (
        'overrides={"data.root": "my images", "epochs": 3, "data.verify": False, "clip_norm": None}'
    )
    assert caller.fields({"model.name": ...}) == 'overrides={"model.name": ...}'
    assert caller.setting(columns={"label": "species"}) == "columns={'label': 'species'}"
    with caller.through(CommandLine()):
        assert caller.name("top_k") == "--top-k"
        assert caller.setting(resume="auto", overwrite=True) == "--resume auto --overwrite"
        assert caller.fields(values) == (
            "--options data.root='my images' epochs=3 data.verify=false clip_norm=null"
        )
        assert caller.fields({"model.name": ...}) == "--options model.name=..."
        assert caller.setting(columns={"label": "species"}) == "--columns label=species"
        with caller.through(caller.Python()):
            assert caller.traceback() == "the traceback shows where"
        assert caller.traceback() == "--debug shows where"
    assert caller.name("resume") == "resume"


def test_what_is_told_in_python_is_a_call_that_python_takes():
    values = {"data.root": 'a "b"\n\\', "data.augment.mean": [0.5, 0.5], "model.args": {"a": None}}
    given = eval(f"dict({caller.fields(values)}, {caller.setting(out='x', k=2)})")
    assert given == {"overrides": values, "out": "x", "k": 2}


def texts(path: Path) -> list[tuple[int, str]]:
    """Return the line and text of all string constants of a file that are no docstrings."""
    tree = ast.parse(path.read_text())
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements
    ]


def test_no_message_outside_the_commands_names_an_option_itself():
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE)
        if inside.parts[0] in OF_COMMANDS or inside.as_posix() == PARSES_A_COMMAND_LINE:
            continue
        for line, text in texts(path):
            assert not OPTION.search(WHOLE_COMMAND.sub("", text)), f"{path}:{line}: {text}"


MISTAKES = [
    # What is wrong; the command; the call; what both messages have, with the caller's words.
    (
        ["digits", "--options", "optimizer.lr=-1"],
        {"config": "digits", "overrides": {"optimizer.lr": -1}},
        "{overrides}: optimizer.lr is -1; allowed: greater than 0",
    ),
    (
        ["digits", "--recipe", "fp61"],
        {"config": "digits", "recipe": "fp61"},
        "{recipe}: no recipe is named 'fp61'",
    ),
    (
        ["digits", "--device", "cuda:99"],
        {"config": "digits", "device": "cuda:99"},
        "write {device_cpu}",
    ),
    (["digits", "--tag", "a/b"], {"config": "digits", "tag": "a/b"}, "write {tag_baseline}"),
    (
        ["digits", "--resume", "nowhere"],
        {"config": "digits", "resume": "nowhere"},
        "{resume} is 'nowhere', which does not exist",
    ),
    (
        ["no_model.yaml"],
        {"config": "no_model.yaml"},
        "model is missing; write it in the config or as {model}",
    ),
    (
        ["folder.yaml"],
        {"config": "folder.yaml"},
        "data.root is 'nowhere', which does not exist; write {data_root}",
    ),
    (
        ["digits", "--out", "taken"],
        {"config": "digits", "out": "taken"},
        "holds 'mine.txt' but no run; write {out} with a new",
    ),
]
WORDS = {
    "command": {
        **{name: f"--{name}" for name in ("recipe", "resume", "out")},
        "overrides": "--options",
        "device_cpu": "--device ",
        "tag_baseline": "--tag baseline",
        "model": "--options model=...",
        "data_root": "--options data.root=FOLDER",
    },
    "Python": {
        **{name: name for name in ("recipe", "resume", "out", "overrides")},
        "device_cpu": 'device="',
        "tag_baseline": 'tag="baseline"',
        "model": 'overrides={"model": ...}',
        "data_root": 'overrides={"data.root": "FOLDER"}',
    },
}


@pytest.mark.parametrize(("arguments", "call", "said"), MISTAKES)
def test_a_mistake_is_told_in_the_callers_language(
    arguments, call, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("no_model.yaml").write_text("epochs: 1\nbatch_size: 8\noptimizer: {name: sgd, lr: 1}\n")
    Path("folder.yaml").write_text("base: digits\ndata: {name: folder, root: nowhere}\n")
    Path("taken").mkdir()
    Path("taken", "mine.txt").touch()
    assert main(["train", *arguments]) == 2
    told = capsys.readouterr().err
    assert said.format(**WORDS["command"]) in told
    with pytest.raises(ValueError, match=re.escape(said.format(**WORDS["Python"]))) as caught:
        halfstep.train(**call)
    assert "--" not in str(caught.value)
    assert "overrides=" not in told
