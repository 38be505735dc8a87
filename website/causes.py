"""Builds a page for each cause that doctor knows, from its rule and from a program of the tests.

The verdict on the page is not stored: doctor watches the program when the site is built.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from halfstep.doctor.verdict import Diagnosis, Rule

ROOT = Path(__file__).parents[1]
ROOMS = {
    "order": "Order of the loop",
    "gradients": "Gradients",
    "updates": "Updates of the weights",
    "rates": "Learning rates",
    "modes": "Training and evaluation mode",
    "scale": "Loss scale",
    "formats": "Formats",
    "overflow": "Overflow",
    "losses": "Losses",
    "data": "Data",
    "dependence": "What a loss depends on",
    "movement": "Movement of weights",
    "numerics": "Numerics",
    "autocast": "Autocast and compiler",
}
THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
WEB = re.compile(r"[\w-]+(\.[\w-]+)+/\S+")


def navigation() -> list[str | dict[str, list[str]]]:
    """Return the entries of the navigation under "Causes"."""
    rooms = [{title: [page_of(each) for each in _rules(room)]} for room, title in ROOMS.items()]
    return ["causes/index.md", *rooms]


def page_of(rule: Rule) -> str:
    """Return the path of a cause's page on the site."""
    return f"causes/{rule.code.lower().replace('_', '-')}.md"


@cache
def pages() -> dict[str, str]:
    """Return the pages by path: one for each cause, and the list of them."""
    index = [
        "# The causes that doctor knows",
        "",
        "[`halfstep doctor train.py`](../doctor.md) runs a training program unchanged and names",
        "the cause of its failure. Each cause has a page with a small program that shows the",
        "cause, and with the verdict of doctor on this program.",
    ]
    built = {}
    for room, title in ROOMS.items():
        about = importlib.import_module(f"halfstep.doctor.rules.{room}").__doc__ or ""
        index += ["", f"## {title}", "", about.strip(), "", "| cause | code |", "| --- | --- |"]
        for rule in _rules(room):
            built[page_of(rule)] = _page(rule)
            index.append(f"| [{rule.name}]({Path(page_of(rule)).name}) | `{rule.code}` |")
    shared = (ROOT / "tests" / "doctor" / "loops.py").read_text()
    index += [
        "",
        "## Code shared by the programs",
        "",
        "The programs import their model, their data and plain training loops from this file:",
        "",
        *_block(shared, "python", 'title="tests/doctor/loops.py"'),
    ]
    return {"causes/index.md": "\n".join(index) + "\n", **built}


def _rules(room: str) -> list[Rule]:
    from halfstep.doctor.rules import rules

    prefix = f"halfstep.doctor.rules.{room}."
    return [rule for rule in rules() if rule.judge.__module__.startswith(prefix)]


@cache
def _programs() -> dict[str, ModuleType]:
    if (tests := str(ROOT / "tests")) not in sys.path:
        sys.path.append(tests)
    from doctor import programs

    found = pkgutil.walk_packages(programs.__path__, "doctor.programs.")
    modules = [importlib.import_module(each.name) for each in found]
    return {module.CODE: module for module in modules if hasattr(module, "CODE")}


def _page(rule: Rule) -> str:
    path = Path(_programs()[rule.code].__file__ or "")
    diagnosis = _diagnosis(rule.code)
    marks = f'title="{path.relative_to(ROOT)}" linenums="1"'
    if line := _line(diagnosis, path):
        marks += f' hl_lines="{line}"'
    parts = [
        f"# {_title(rule.name)}",
        "",
        f"`{rule.code}`",
        "",
        rule.about,
        "",
        "## What doctor says",
        "",
        *_block(_said(diagnosis), "text"),
        "",
        "## The program",
        "",
        "`broken()` contains the error; `mended()` is the same program without the error. The",
        "code that both import is at the end of",
        "[the list of causes](index.md#code-shared-by-the-programs).",
        "",
        *_block(path.read_text(), "python", marks),
        "",
        "## Reports and references",
        "",
        *(f"- {_cited(each)}" for each in rule.citations),
    ]
    related = [
        ("doctor lists these as consequences of this cause", _consequences(rule)),
        ("doctor lists this cause as a consequence of", _causes(rule.code)),
    ]
    if any(codes for _, codes in related):
        parts += ["", "## Related causes", ""]
        parts += [
            f"- {said}: {', '.join(_linked(code) for code in codes)}."
            for said, codes in related
            if codes
        ]
    return "\n".join(parts) + "\n"


def _title(name: str) -> str:
    """Return a rule's name with a capital letter, unless its first word is code or a format."""
    first = name.split(maxsplit=1)[0]
    return name[0].upper() + name[1:] if first.isalpha() else name


@cache
def _diagnosis(code: str) -> Diagnosis:
    """Return the diagnosis of a cause's program."""
    from halfstep.doctor import Watch, diagnose

    watch = Watch()
    silent = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(silent):
        warnings.simplefilter("ignore")
        # Some programs end with an exception, which doctor diagnoses.
        with contextlib.suppress(Exception), watch:
            _programs()[code].broken()
    return diagnose(watch.close())


def _line(diagnosis: Diagnosis, path: Path) -> int | None:
    site = diagnosis.verdicts[0].finding.site
    return site.line if site is not None and Path(site.file).name == path.name else None


def _said(diagnosis: Diagnosis) -> str:
    from halfstep.doctor.report.show import print_diagnosis

    def from_the_root(verdict: Any) -> Any:
        site = verdict.finding.site
        if site is None:
            return verdict
        short = replace(site, file=site.file.removeprefix(f"{ROOT}/"))
        return replace(verdict, finding=replace(verdict.finding, site=short))

    verdicts = tuple(from_the_root(each) for each in diagnosis.verdicts)
    text = io.StringIO()
    print_diagnosis(replace(diagnosis, verdicts=verdicts), text)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _consequences(rule: Rule) -> list[str]:
    """Return the codes that a rule explains, and those that it explains in its program."""
    return list(dict.fromkeys([*rule.explains, *_diagnosis(rule.code).consequences]))


def _causes(code: str) -> list[str]:
    return [rule.code for room in ROOMS for rule in _rules(room) if code in _consequences(rule)]


def _linked(code: str) -> str:
    from halfstep.doctor.rules import rules

    rule = next(each for each in rules() if each.code == code)
    return f"[{rule.name}]({Path(page_of(rule)).name})"


def _cited(citation: str) -> str:
    if THREAD.fullmatch(citation):
        repository, number = citation.split("#")
        return f"[{citation}](https://github.com/{repository}/issues/{number})"
    if WEB.fullmatch(citation):
        return f"<https://{citation}>"
    return citation


def _block(text: str, language: str, marks: str = "") -> list[str]:
    return [f"```{language} {marks}".rstrip(), text.rstrip(), "```"]
