"""`halfstep doctor`: runs programs as they are, and keeps what they say and how they end."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path

import pytest
import torch

import halfstep
from halfstep.cli import main
from halfstep.doctor.record import from_json

PROGRAM = """
import sys
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    {double}
    scaler.update()
print("arguments", sys.argv[1:], __name__)
{end}
"""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def script(tmp_path):
    def write(double: str = "", end: str = "") -> str:
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(double=double, end=end))
        return str(path)

    return write


def test_a_broken_program_is_explained_and_its_output_kept(script, tmp_path, capsys) -> None:
    report = tmp_path / "report"
    double = "torch.optim.Optimizer.zero_grad; optimizer.step()  # a comment that is long"
    code = main(["doctor", "--report", str(report), script(double=double), "--lr", "1"])
    said = capsys.readouterr()
    assert code == 0
    assert said.out == "arguments ['--lr', '1'] __main__\n"
    assert "STEP_BYPASSES_SCALER" in said.err
    # A line of code is whole, however long the path before it, and has no comment.
    code_line = double.partition("  #")[0]
    assert f"program.py:14   {code_line}\n" in said.err
    assert "comment" not in said.err
    record = json.loads((report / "diagnosis.json").read_text())
    assert record["diagnosis"]["verdicts"][0]["code"] == "STEP_BYPASSES_SCALER"
    assert record["diagnosis"]["verdicts"][0]["rows"] == [1]
    assert from_json(json.dumps(record["evidence"])).loop.iterations == 3


def test_the_module_for_launchers_takes_the_same_options(script, tmp_path, capsys) -> None:
    from halfstep.doctor.__main__ import main as module

    report = tmp_path / "report"
    assert module(["--hold-back", "--report", str(report), script()]) == 0
    record = json.loads((report / "diagnosis.json").read_text())
    assert record["evidence"]["environment"]["hold_back"]
    assert "steps of SGD are not held back" in capsys.readouterr().err


def test_a_report_says_what_it_contains(script, tmp_path, capsys) -> None:
    report = tmp_path / "report"
    spoilt = script().replace("program", "spoilt")
    Path(spoilt).write_text(
        Path(script()).read_text().replace("torch.ones(3, 4)", "torch.ones(3, 4) / 0")
    )
    for path, said in (
        (spoilt, f"{report}: diagnosis.html and diagnosis.json, and the step in bundle"),
        (script(), f"{report}: diagnosis.html and diagnosis.json; no bundle, because"),
    ):
        assert main(["doctor", "--report", str(report), path]) == 0
        assert said in capsys.readouterr().err
    assert not [*(report / "bundle").iterdir()]  # not that of the program before
    assert main(["doctor", "--report", str(report), spoilt]) == 0
    assert main(["doctor", "--report", str(report), "mistyped.py"]) == 2
    assert [*(report / "bundle").iterdir()]


def test_a_program_without_a_step_is_not_called_healthy(tmp_path, capsys) -> None:
    (tmp_path / "program.py").write_text("import torch\nprint(torch.ones(2))\n")
    assert main(["doctor", str(tmp_path / "program.py")]) == 0
    assert "no optimizer made a step" in capsys.readouterr().err


def test_a_program_finds_its_own_file_as_under_python(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "program.py").write_text("print(__file__)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "program.py"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'program.py'}\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the scaler is on where there is CUDA")
@pytest.mark.parametrize("broken", [False, True])
def test_a_scaler_that_torch_switched_off_is_said_to_be_unchecked(script, capsys, broken) -> None:
    unchecked = (
        "the loss scale was not checked, because PyTorch turns GradScaler('cuda') off without"
    )
    path = Path(script())
    text = path.read_text().replace('GradScaler("cpu")', 'GradScaler("cuda")')
    path.write_text(text.replace("torch.ones(3, 4)", "torch.ones(3, 4) / 0") if broken else text)
    with pytest.warns(UserWarning, match="CUDA"):
        assert main(["doctor", str(path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (f"doctor: {unchecked} a GPU; nothing else was found" in said) == (not broken)
    assert unchecked in said
    assert "write torch.autocast('cpu', dtype=torch.float16) and torch.amp.GradScaler" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="autocast is on where there is CUDA")
@pytest.mark.parametrize("wanted", [True, False])
def test_an_autocast_that_torch_switched_off_is_said_to_be_unchecked(
    script, capsys, wanted
) -> None:
    path = Path(script())
    text = path.read_text().replace(
        "import torch\n", f"import torch\ntorch.autocast('cuda', enabled={wanted})\n", 1
    )
    path.write_text(text)
    warns = pytest.warns(UserWarning, match="CUDA") if wanted else contextlib.nullcontext()
    with warns:
        assert main(["doctor", str(path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "half precision was not checked, because PyTorch turns torch.autocast('cuda') off" in said
    ) == wanted


def test_a_program_that_sigterm_ends_is_explained(script, capsys) -> None:
    path = script(
        double="optimizer.step()",
        end="import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('not reached')",
    )
    assert main(["doctor", path]) == 128 + signal.SIGTERM
    said = capsys.readouterr()
    assert "STEP_BYPASSES_SCALER" in said.err
    assert "not reached" not in said.out
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


CHILD = """
import os, signal, time
child = os.fork()
if child == 0:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    finally:
        os._exit(7)
print("the child's end:", os.waitpid(child, 0)[1])
"""


def test_a_process_that_the_program_forks_ends_by_sigterm_as_it_would(script, capsys) -> None:
    assert main(["doctor", script(end=CHILD)]) == 0
    assert f"the child's end: {int(signal.SIGTERM)}\n" in capsys.readouterr().out


def test_a_program_keeps_its_own_handler_of_sigterm(script, capsys) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: print('own handler'))"
    path = script(end=f"import os, signal\n{own}\nos.kill(os.getpid(), signal.SIGTERM)")
    try:
        assert main(["doctor", path]) == 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert "own handler" in capsys.readouterr().out


def test_a_traceback_has_the_programs_lines_only(script, capsys) -> None:
    path = script(double="scaler.step(optimizer)")
    assert main(["doctor", path]) == 1
    said = capsys.readouterr().err
    assert "step() has already been called" in said
    assert "program.py" in said
    # A checkout, in which torch is installed, may itself be in a folder of this name.
    assert str(Path(halfstep.__file__).parent) not in said.partition("doctor:")[0]


def test_a_report_is_a_page_too(script, tmp_path) -> None:
    report = tmp_path / "report"
    assert main(["doctor", "--report", str(report), script(double="optimizer.step()")]) == 0
    assert 'data-code="STEP_BYPASSES_SCALER"' in (report / "diagnosis.html").read_text()
    assert not (report / "bundle").exists()  # no step was bad


def test_a_healthy_program_gets_nothing_found(script, capsys) -> None:
    assert main(["doctor", script()]) == 0
    assert "nothing found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('enough')", 1, "enough"),
        ("raise KeyError('gone')", 1, "KeyError: 'gone'"),
    ],
)
def test_exit_code_and_exception_are_the_programs_own(script, capsys, end, code, said) -> None:
    assert main(["doctor", script(end=end)]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "halfstep/doctor" not in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "there is no program to run"),
        (["-m"], "-m needs the name of a module"),
        (["nowhere.py"], "there is no file nowhere.py"),
        (["--json"], "halfstep doctor has no option --json"),
    ],
)
def test_nothing_to_run_is_one_line_and_exit_code_2(capsys, argv, said) -> None:
    assert main(["doctor", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1


def test_an_option_behind_the_program_is_the_programs_and_said_to_be(script, capsys) -> None:
    path = script()
    assert main(["doctor", path, "--report=out"]) == 0
    said = capsys.readouterr()
    assert said.out == "arguments ['--report=out'] __main__\n"
    # Before the program runs: it may run for long.
    assert said.err.splitlines()[0].endswith(f"halfstep doctor --report ... {path}")
    Path(path).write_text(f"{Path(path).read_text()}\nassert '--report=out' in sys.argv")
    assert main(["doctor", path, "--report=out"]) == 0
    assert "--report" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["run", "bundle"])
def test_an_option_behind_a_run_or_a_bundle_is_refused(kind, tmp_path, capsys) -> None:
    given = tmp_path if kind == "run" else tmp_path / "evidence.json"
    (tmp_path / "config.yaml").touch()
    assert main(["doctor", str(given), "--report", "out"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"error: {given} is not a program and takes no arguments, but --report out"
    )
    assert err.endswith(f"halfstep doctor --report DIR {given}\n")


def test_list_prints_every_cause(capsys) -> None:
    from halfstep.doctor.rules import rules

    assert main(["doctor", "--list"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3 * len(rules())
    assert all(f"{rule.code} " in out and rule.about in out for rule in rules())


def test_list_explains_the_named_causes(capsys) -> None:
    assert main(["doctor", "--list", "LOG_OF_ZERO"]) == 0
    code, about, reported = capsys.readouterr().out.splitlines()
    assert code.split(maxsplit=1)[0] == "LOG_OF_ZERO"
    assert about.strip() == (
        "The argument of a logarithm is 0: the result is -inf, and the gradient divides by 0. "
        "If the argument is so small that 1 / x overflows, only the gradient is inf."
    )
    assert "reported in " in reported
    assert main(["doctor", "--list", "LOG_OF_ZER"]) == 2
    assert "did you mean 'LOG_OF_ZERO'?" in capsys.readouterr().err
