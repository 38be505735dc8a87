"""`python -m halfstep.apex`: programs run as they are."""

import sys

import pytest

from halfstep.apex import uninstall
from halfstep.apex.__main__ import main

PROGRAM = """
import sys
from apex import amp
import neighbour
print(__name__, sys.argv[1:], amp.__name__, neighbour.NAME)
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["python"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    (tmp_path / "neighbour.py").write_text("NAME = 'found'")
    (tmp_path / "program.py").write_text(PROGRAM)
    yield tmp_path / "program.py"
    sys.modules.pop("neighbour", None)
    uninstall()


SAID = "__main__ ['--opt-level', 'O2'] halfstep.apex.amp found\n"


def test_a_script_runs_with_its_arguments_and_its_exit_code(program, capsys):
    with pytest.raises(SystemExit) as left:
        main([str(program), "--opt-level", "O2"])
    assert left.value.code == 3
    assert capsys.readouterr().out == SAID


def test_a_module_runs(program, capsys, monkeypatch):
    monkeypatch.chdir(program.parent)
    with pytest.raises(SystemExit):
        main(["-m", "program", "--opt-level", "O2"])
    assert capsys.readouterr().out == SAID


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([], 2, "usage: python -m halfstep.apex (script.py | -m module)"),
        (["-m"], 2, "usage:"),
        (["nowhere.py"], 2, "error: there is no file nowhere.py; usage:"),
        (["--help"], 0, "usage:"),
    ],
)
def test_what_cannot_run_says_so_in_a_line(argv, code, said, capsys):
    assert main(argv) == code
    printed = capsys.readouterr()
    assert (printed.err if code else printed.out).startswith(said)
    assert "apex" not in sys.modules
