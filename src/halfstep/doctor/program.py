"""Runs an unchanged program under watch: a script or a module, as `python` would.

The exit code is the program's own, and the traceback of its exception is printed. The diagnosis
goes to stderr, after the output of the program.
"""

from __future__ import annotations

import contextlib
import gc
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from halfstep.doctor.bundle import files
from halfstep.doctor.report.diagnose import diagnose
from halfstep.doctor.report.progress import Progress
from halfstep.doctor.report.show import as_json, print_diagnosis
from halfstep.doctor.saved import explain, is_saved, saved_in
from halfstep.doctor.watching.watch import Watch
from halfstep.errors import UserError
from halfstep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.verdict import Diagnosis

    Page = Callable[[Diagnosis, Evidence], str]

_NO_BUNDLE = "no bundle, because no repeated step had inf or NaN in its loss or gradients"
_OPTIONS = ("--report", "--hold-back", "--import")
"""Doctor's own options, which users sometimes write after the program by mistake."""
USAGE = "halfstep doctor [--report DIR] (script.py | -m module | BUNDLE) [its arguments]"


def run_program(
    argv: Sequence[str],
    report: Path | None = None,
    *,
    hold_back: bool = False,
    page: Page | None = None,
) -> int:
    """Run a program under watch, and print the diagnosis.

    Args:
        argv: The script and its arguments; "-m", the module and its arguments; or a saved
            report to explain: its directory, a bundle, or a JSON file with evidence.
        report: Directory for `diagnosis.json` and a bundle of a bad step, created if it does not
            exist; None for no report.
        hold_back: Whether fused optimizers skip steps whose loss or gradients are not finite.
        page: A function that returns the report as HTML, for `diagnosis.html`; None for no HTML.

    Returns:
        The program's exit code.

    Raises:
        UserError: If there is nothing to run.
    """
    name = _of_rank("bundle")
    if argv and is_saved(saved := saved_in(Path(argv[0]))):
        refuse_arguments(argv)
        return _explain(saved, report, page)
    prepared, hint = _prepare(argv), _hint(argv)
    bundle = None if report is None else report / name
    if bundle is not None:
        files.remove(bundle)
    watch = Watch(hold_back=hold_back, bundle=bundle, waits=True, children=True)
    error: BaseException | None = None
    code = 0
    if hint:  # Printed at the end again; now too, because the program may run for a long time.
        print(hint, file=sys.stderr)  # noqa: T201  # a command line
    if not gc.get_freeze_count():
        # Each collection looks at all objects, and nothing of torch's modules is garbage.
        gc.freeze()
    watch.start()
    with Progress(lambda: watch.state):
        try:
            with _ended_by_sigterm():
                prepared()
        except SystemExit as exit_:
            code = _exit_code(exit_)
            error = exit_ if code else None
        except BaseException as raised:  # noqa: BLE001  # whatever it is, it is the program's
            code = 130 if isinstance(raised, KeyboardInterrupt) else 1
            error = raised
        if error is not None:
            watch.note_ending(error)
            if not isinstance(error, SystemExit):
                _print_error(error)
        evidence = watch.close()
    diagnosis = diagnose(evidence)
    _say(diagnosis, evidence, report, page)
    written = "" if report is None else _written(report, watch.note or _NO_BUNDLE)
    for line in filter(None, (watch.failure, written, hint)):
        print(line, file=sys.stderr)  # noqa: T201  # a command line
    return code


def refuse_arguments(argv: Sequence[str]) -> None:
    """Refuse arguments after a run's directory or a bundle.

    Raises:
        UserError: If there are such arguments.
    """
    if len(argv) > 1:
        raise UserError(
            f"{argv[0]} is not a program and takes no arguments, but {' '.join(argv[1:])} follows "
            f"it; write doctor's options before {argv[0]}: halfstep doctor --report DIR {argv[0]}"
        )


def _hint(argv: Sequence[str]) -> str:
    """Return a warning if the program received an option of doctor, or ""."""
    start = 2 if argv[0] == "-m" else 1
    names = [each.partition("=")[0] for each in argv[start:]]
    option = next((name for name in names if name in _OPTIONS), "")
    if not option or (start == 1 and option.encode() in Path(argv[0]).read_bytes()):
        return ""
    return (
        f"{option} is after the program, so the program received it; write options of "
        f"doctor before the program: halfstep doctor {option} ... {' '.join(argv[:start])}"
    )


def _explain(path: Path, report: Path | None, page: Page | None) -> int:
    diagnosis, evidence, said = explain(path)
    _say(diagnosis, evidence, report, page)
    if said:
        print(said, file=sys.stderr)  # noqa: T201  # a command line
    return 0


def _say(diagnosis: Diagnosis, evidence: Evidence, report: Path | None, page: Page | None) -> None:
    sys.stdout.flush()
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or diagnosis.verdicts:
        print_diagnosis(diagnosis, sys.stderr)
    if report is not None:
        write_atomically(report / _of_rank("diagnosis", ".json"), as_json(diagnosis, evidence))
        if page is not None:
            write_atomically(report / _of_rank("diagnosis", ".html"), page(diagnosis, evidence))
        files.write_evidence(report / _of_rank("bundle"), evidence)


def _written(report: Path, why_no_bundle: str) -> str:
    """Return a line about the files of a report."""
    names = [_of_rank("diagnosis", suffix) for suffix in (".html", ".json")]
    found = " and ".join(each for each in names if (report / each).is_file())
    bundle = report / _of_rank("bundle")
    if (bundle / files.STEP).is_file():
        return f"{report}: {found}, and the step in {bundle.name}"
    return f"{report}: {found}; {why_no_bundle}"


def _of_rank(name: str, suffix: str = "") -> str:
    rank = int(os.environ.get("RANK", "0"))
    return f"{name}{suffix}" if rank == 0 else f"{name}-{rank}{suffix}"


def _prepare(argv: Sequence[str]) -> Any:
    if not argv:
        raise UserError(f"there is no program to run; write {USAGE}")
    if argv[0] == "-m":
        if len(argv) == 1:
            raise UserError(f"-m needs the name of a module; write {USAGE}")
        sys.argv = list(argv[1:])
        sys.path.insert(0, str(Path.cwd()))
        return lambda: runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    path = Path(argv[0])
    if path.is_dir():
        raise UserError(f"{argv[0]} is neither a run's directory nor a bundle; write {USAGE}")
    if not path.is_file():
        is_option = argv[0].startswith("-")
        what = "halfstep doctor has no option" if is_option else "there is no file"
        raise UserError(f"{what} {argv[0]}; write {USAGE}")
    sys.argv = list(argv)
    sys.path.insert(0, str(path.resolve().parent))
    return lambda: _run_script(path)


def _run_script(path: Path) -> None:
    # runpy.run_path would free the program's objects at its end; doctor still examines them.
    code = compile(path.read_bytes(), str(path), "exec")
    main = ModuleType("__main__")
    main.__dict__.update(__file__=str(path.absolute()), __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102  # it is what was asked for


def _exit_code(exit_: SystemExit) -> int:
    if exit_.code is None or isinstance(exit_.code, int):
        return exit_.code or 0
    print(exit_.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    return 1


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM, which clusters and `timeout` send, into an exception."""
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return
    watched = os.getpid()

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != watched:  # A process that the program forked ends as without doctor.
            os.kill(os.getpid(), number)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _print_error(error: BaseException) -> None:
    """Print the program's traceback, without the frames of doctor."""
    sys.stdout.flush()
    shown = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [shown]
    here = str(Path(__file__).parent)
    while pending:
        each = pending.pop()
        if each is not None:
            kept = [frame for frame in each.stack if not frame.filename.startswith(here)]
            each.stack = traceback.StackSummary.from_list(kept)
            pending += [each.__cause__, each.__context__]
    print("".join(shown.format()), end="", file=sys.stderr)  # noqa: T201  # a command line
