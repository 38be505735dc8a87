"""Runs a program with a fault under doctor, in a copy and in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
import traceback
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.doctor.program import run_program
from large_programs.faults import Exchange, Fault, Outcome, Program

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec


class Exchanged(MetaPathFinder):
    """Finds copies of modules instead of the modules.

    Args:
        copies: Their files, by name.
    """

    def __init__(self, copies: dict[str, Path]) -> None:
        self._copies = copies

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the copy of a module, where there is one."""
        if name not in self._copies:
            return None
        return importlib.util.spec_from_file_location(name, self._copies[name])


def run(program: Program, checkout: Path | None, data: Path, fault: Fault | None) -> Outcome:
    """Run a program with a fault, or as it is, under doctor.

    Args:
        program: The program.
        checkout: The folder of its files; None where it is text.
        data: The folder of its data.
        fault: The fault.

    Raises:
        SystemExit: If it does not run, or leaves no report.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _copy(program, checkout, place)
        copies = _put_in((*program.base, *(fault.exchanges if fault else ())), place)
        (place / "out").mkdir()
        command = [
            program.entry,
            *((program.data, str(data)) if program.data else ()),
            *((program.out, str(place / "out")) if program.out else ()),
            *program.arguments.split(),
            *(fault.arguments.split() if fault else ()),
        ]

        def train() -> int:
            os.chdir(place)
            assert not copies.keys() & sys.modules.keys()
            sys.meta_path.insert(0, Exchanged(copies))
            return run_program(command, place / "report")

        code = _in_child(train, place / "output.txt")
        said = (place / "output.txt").read_text(errors="replace")[-4000:]
        report = place / "report" / "diagnosis.json"
        if not report.exists() or (fault is None and code):
            raise SystemExit(f"{fault.name if fault else program.name} does not run:\n{said}")
        found = json.loads(report.read_text())
        if not found["evidence"]["loop"]["shapes"]:
            raise SystemExit(f"{fault.name if fault else program.name} does not train:\n{said}")
    return _outcome(program, fault, found["diagnosis"]["verdicts"], found["evidence"]["births"])


def _copy(program: Program, checkout: Path | None, place: Path) -> None:
    if checkout is None:
        (place / program.entry).write_text(program.text)
        return
    for source in checkout.glob("*.py"):
        (place / source.name).write_text(source.read_text())


def _put_in(exchanges: tuple[Exchange, ...], place: Path) -> dict[str, Path]:
    """Make exchanges; return the copies of modules that they were made in."""
    copies: dict[str, Path] = {}
    for each in exchanges:
        path = place / each.file
        if not each.file.endswith(".py"):
            path = place / f"exchanged_{each.file.replace('.', '_')}.py"
            if each.file not in copies:
                path.write_text(_source(each.file))
            copies[each.file] = path
        text = path.read_text()
        if each.old not in text:
            raise SystemExit(f"{each.file} has no {each.old.strip()!r}: another version?")
        path.write_text(text.replace(each.old, each.new))
    return copies


def _source(module: str) -> str:
    # To ask for the module's own place would import what it lies in, and with that the module.
    package, *rest = module.split(".")
    found = importlib.util.find_spec(package)
    for place in (found and found.submodule_search_locations) or ():
        file = Path(place).joinpath(*rest).with_suffix(".py")
        if file.is_file():
            return file.read_text()
    raise SystemExit(f"there is no module {module}: another version?")


def _in_child(work: Callable[[], int], output: Path) -> int:
    """Run something in a forked process, which has torch and doctor already, and what it prints."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        target = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(target, 1)
        os.dup2(target, 2)
        code = work()
    except BaseException:  # noqa: BLE001  # the parent shows it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _outcome(
    program: Program,
    fault: Fault | None,
    verdicts: list[dict[str, Any]],
    births: list[dict[str, Any]],
) -> Outcome:
    """Compare verdicts with what was put in."""
    given = [str(each["code"]) for each in verdicts]
    if fault is None:
        return Outcome(program.name, None, "nothing", given)
    named = next((each for each in verdicts if each["code"] == fault.code), None)
    if named is None:
        return Outcome(program.name, fault.row, fault.code, given)
    finding = named["finding"]
    lines = [finding["site"], *(each["site"] for each in births if _is_named(each, finding))]
    texts = [each["text"] for each in lines if each]
    right = [text for text in texts if fault.line and fault.line in text]
    return Outcome(
        program.name,
        fault.row,
        fault.code,
        given,
        next(iter([*right, *texts]), ""),
        finding["module"],
        bool(right) if fault.line else None,
        finding["module"].endswith(fault.module) if fault.module else None,
    )


def _is_named(birth: dict[str, Any], finding: dict[str, Any]) -> bool:
    """Return whether a finding names the line of a library that made inf or NaN."""
    site = birth["site"]
    if not site:
        return False
    line = re.compile(rf"{re.escape(Path(site['file']).name)}:{site['line']}(?!\d)")
    return any(line.search(fact) for fact in finding["facts"])
