"""Prints a diagnosis on a terminal, on one screen, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from halfstep.doctor.record import as_plain

if TYPE_CHECKING:
    from typing import TextIO

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.verdict import Diagnosis, Verdict

FULLY = 2
FACTS = 5


def print_diagnosis(diagnosis: Diagnosis, file: TextIO) -> None:
    """Print a diagnosis."""
    console = Console(file=file, highlight=False, soft_wrap=False)
    with console.capture() as shown:
        _print(diagnosis, console)
    # rich fills padded lines with trailing blanks.
    file.write("".join(f"{line.rstrip()}\n" for line in shown.get().splitlines()))


def _print(diagnosis: Diagnosis, console: Console) -> None:
    if not diagnosis.verdicts:
        console.print(Text(f"doctor: {diagnosis.headline}"))
    for verdict in diagnosis.verdicts[:FULLY]:
        console.print(_verdict(verdict), crop=False)
    for verdict in diagnosis.verdicts[FULLY:]:
        console.print(Text(f"doctor: also {verdict.code}: {verdict.finding.summary}"))
    if diagnosis.consequences:
        console.print(Text(f"consequences: {', '.join(diagnosis.consequences)}"))
    if diagnosis.headroom and not diagnosis.verdicts:
        console.print(Text(diagnosis.headroom))
    if diagnosis.advice:
        console.print(Text(diagnosis.advice))
    if diagnosis.unchecked and diagnosis.verdicts:
        console.print(Text(diagnosis.unchecked))
    for note in diagnosis.notes:
        console.print(Text(note))


def _verdict(verdict: Verdict) -> Group:
    finding = verdict.finding
    title = Text.assemble(
        "doctor: ",
        (verdict.name, "bold"),
        f"  {verdict.code}  ({finding.confidence})",
        no_wrap=True,
        overflow="ignore",
    )
    lines: list[Any] = [title, Padding(Text(finding.summary), (0, 2))]
    if finding.site is not None:
        at = f"{finding.site.file}:{finding.site.line}"
        lines.append(_code(f"{at}   {finding.site.text}", indent=2))
    lines += [Padding(Text(f"· {each}"), (0, 2)) for each in finding.facts[:FACTS]]
    if finding.change:
        is_code = any(each[:2] in ("- ", "+ ") for each in finding.change)
        lines.append(Padding(Text("change:" if is_code else "advice:"), (0, 2)))
        lines += [_code(each, indent=4) for each in finding.change]
    lines += [Padding(Text(f"ruled out: {each}"), (0, 2)) for each in finding.ruled_out]
    lines.append(Padding(Text(f"see {', '.join(verdict.citations)}", style="dim"), (0, 2)))
    return Group(*lines)


def _code(line: str, *, indent: int) -> Text:
    """Return a line of code, or of a suggested change, that is printed without line breaks."""
    style = {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
    return Text(" " * indent + line, style=style, no_wrap=True, overflow="ignore")


def as_json(diagnosis: Diagnosis, evidence: Evidence) -> str:
    """Return a diagnosis and its evidence as JSON."""
    record = {"diagnosis": as_plain(diagnosis), "evidence": json.loads(evidence.to_json())}
    return json.dumps(record, indent=1)
