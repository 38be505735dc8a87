import subprocess
import sys

import pytest

import halfstep as package
from halfstep.cli import app, main
from halfstep.errors import UserError
from halfstep.train.config import files as config_files

COMMANDS = [
    "train", "eval", "predict", "export", "runs", "compare", "configs", "config", "recipes",
    "advise", "bench", "data", "init", "doctor", "migrate", "env",
]  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], [], ["-h"]])
def test_help_lists_every_command(halfstep, arguments):
    code, out, _ = halfstep(*arguments)
    assert code == 0
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(halfstep, command):
    code, out, _ = halfstep(command, "--help")
    assert code == 0
    assert f"halfstep {command}" in out


def test_lines_of_help_break_at_the_width_of_the_terminal(halfstep, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = halfstep("data", "check", "--help")
    assert code == 0
    assert "images that are missing, unreadable or blank" in out


def test_help_and_tables_do_not_import_torch():
    lines = [f"main([{command!r}, '--help'])" for command in COMMANDS]
    lines += ["main(['--help'])", "main(['recipes'])", "main(['recipes', '--json'])"]
    lines += ["main(['configs'])"]
    program = "\n".join(
        ["import sys", "from halfstep.cli import main", *lines, "sys.exit('torch' in sys.modules)"]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_m_halfstep_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "halfstep", "train", "digit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no config is named 'digit'")


def test_version_is_the_packages(halfstep):
    assert halfstep("--version")[:2] == (0, package.__version__ + "\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "error: No such command 'trian'"),
        (["train"], "error: Missing argument 'CONFIG'; see halfstep train --help"),
        (["train", "digits", "--sed", "1"], "error: No such option: --sed"),
        (["train", "digits", "--seed", "x"], "error: Invalid value for '--seed'"),
        (["configs", "extra"], "error: Got unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(halfstep, arguments, said):
    code, out, err = halfstep(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") == 1


def failing(error):
    def load(*_, **__):
        raise error

    return load


def test_ctrl_c_is_one_line_and_exit_code_130(halfstep, monkeypatch):
    monkeypatch.setattr(config_files, "load", failing(KeyboardInterrupt()))
    assert halfstep("train", "digits") == (130, "", "interrupted\n")
    monkeypatch.setattr(config_files, "load", failing(KeyboardInterrupt("stopped in epoch 2")))
    assert halfstep("train", "digits") == (130, "", "stopped in epoch 2\n")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_the_traceback_wherever_it_stands(halfstep, place):
    arguments = ["train", "digit"]
    arguments.insert(place, "--debug")
    with pytest.raises(UserError, match="no config is named 'digit'"):
        main(arguments)


def test_errors_of_the_system_are_one_line_and_own_bugs_are_not_hidden(halfstep, monkeypatch):
    monkeypatch.setattr(config_files, "load", failing(OSError(28, "No space left\non device")))
    assert halfstep("train", "digits") == (2, "", "error: [Errno 28] No space left on device\n")
    monkeypatch.setattr(config_files, "load", failing(ZeroDivisionError("bug")))
    with pytest.raises(ZeroDivisionError):
        halfstep("train", "digits")


@pytest.mark.parametrize(
    ("line", "offered"),
    [("halfstep con", ["config", "configs"]), ("halfstep train --reci", ["--recipe"])],
)
def test_a_shell_completes_commands_and_options(monkeypatch, capsys, line, offered):
    monkeypatch.setenv("_HALFSTEP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as done:
        main([])
    assert not done.value.code
    assert sorted(capsys.readouterr().out.split()) == offered


def test_commands_on_the_line_are_those_of_the_app():
    commands = {command.name for command in app.registered_commands}
    assert commands | {group.name for group in app.registered_groups} == set(COMMANDS)


def test_an_option_without_its_value_names_the_help_of_its_command(capsys):
    assert main(["advise", "digits", "--gpu"]) == 2
    assert capsys.readouterr().err.endswith("; see halfstep advise --help\n")
    assert main(["data", "check", "--csv"]) == 2
    assert capsys.readouterr().err.endswith("; see halfstep data check --help\n")
