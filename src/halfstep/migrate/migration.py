"""The whole migration: takes a source; returns the rewritten source and notes for the user."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from halfstep.errors import UserError, closest
from halfstep.migrate.analysis.understanding import LEFT, Understanding
from halfstep.migrate.program.branches import imports_apex
from halfstep.migrate.program.names import STARRED, calls, dotted, is_apex, plain
from halfstep.migrate.program.program import Program
from halfstep.migrate.program.render import Edits, rendered_lines
from halfstep.migrate.program.source import Source, inner
from halfstep.migrate.rewriting.casts import CASTS, device_text, write_statements
from halfstep.migrate.rewriting.expressions import Expressions
from halfstep.migrate.rewriting.imports import with_imports
from halfstep.migrate.rewriting.leftovers import STARS
from halfstep.migrate.rewriting.rewrite import Rewriter
from halfstep.migrate.rewriting.targets import EngineTarget, TorchTarget
from halfstep.migrate.verification.coverage import UNCOVERED, uncovered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from halfstep.migrate.program.source import File
    from halfstep.migrate.rewriting.targets import Target

TARGETS = ("halfstep", "torch")
BY_NAME = (
    "Apex is imported by a function call, so migrate does not know its name in this file; write an "
    "import statement, and migrate again"
)

_PROTOCOL = {"amp.initialize", "amp.scale_loss", "amp.master_params"}
FROM_ELSEWHERE = (
    "this file does not import amp from Apex itself, so migrate does not know its name; write "
    "`from apex import amp` here, and migrate again"
)


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """A line that the user must check.

    Attributes:
        line: Line number in the original program, from 1.
        reason: Why code at this line was not translated or trains differently, and what to write.
    """

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Migration:
    """A rewritten file.

    Attributes:
        before: The original source; None for a new file.
        after: The rewritten source.
        notes: The lines that the user must check, in the order of the lines.
        name: The path of the file.
    """

    before: str | None
    after: str
    notes: tuple[Note, ...] = ()
    name: str = "program"

    def diff(self, name: str) -> str:
        """Return a unified diff, with `name` as the name of the file."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            "/dev/null" if self.before is None else f"a/{name}",
            f"b/{name}",
        )
        ended = "\n\\ No newline at end of file\n"
        return "".join(line if line.endswith("\n") else line + ended for line in lines)


def migrate(source: str, to: str = "halfstep", *, name: str = "program") -> Migration:
    """Rewrite a program of one file that was written for Apex's amp.

    Args:
        source: The source of the program.
        to: "halfstep" for `halfstep.Engine`, "torch" for `torch.amp`.
        name: The name of the program in error messages.

    Raises:
        UserError: If `to` is not a target, or `source` is not valid Python.
    """
    (done,) = migrate_program({name: source}, to)
    return done


def migrate_program(texts: Mapping[str, str], to: str) -> list[Migration]:
    """Rewrite a program of several files together.

    Args:
        texts: The texts of the files by path.
        to: "halfstep" for `halfstep.Engine`, "torch" for `torch.amp`.

    Returns:
        The files in the order given; a file that the rewritten program needs in addition follows.

    Raises:
        UserError: If `to` is not a target, or a text is not valid Python.
    """
    if to not in TARGETS:
        raise UserError(f"--to is {to!r}; allowed: {', '.join(TARGETS)}{closest(to, TARGETS)}")
    given = Source(texts)
    program = Program.read(given)
    reasons = [*_stars(given), *_unknown_names(program)]
    if program.imports.by_name or not program.imports.bound:
        return _left(given, reasons)
    target = EngineTarget(program) if to == "halfstep" else TorchTarget(program)
    edits = Edits()
    unclear = [(each, reason + LEFT) for each, reason in write_statements(program, edits)]
    if unclear:
        return _left(given, [*unclear, *reasons])
    target.imports |= dict.fromkeys(("import torch", "import functools"))
    target.preamble |= dict.fromkeys((device_text(program), CASTS))
    expressions = Expressions(program, target, amp=program.needs_engine(given.tree))
    if expressions.amp:
        about = Understanding(program, target.called)
        if not about.reasons:
            Rewriter(about, target, expressions, edits).write()
        if about.reasons:
            return _left(given, [*about.reasons, *reasons])
        if any(about.recipes[each.call].level != "O0" for each in about.trained):
            reasons += _outside_autocast(program, target, edits)
    else:
        expressions.read(edits.replaced)
        edits.expressions |= expressions.changed
    for statement, reason in [*expressions.notes, *reasons]:
        edits.notes[statement].append(reason)
    return _written(program, target, edits)


def _unknown_names(program: Program) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements that use amp under a name that is not known, each with a note."""
    given, imports = program.source, program.imports
    yield from ((given.statement(each), BY_NAME) for each in imports.by_name)
    if not imports.bound and not imports.by_name and "amp" not in imports.names:
        used = [each for each in calls(given.tree) if dotted(each.func) in _PROTOCOL]
        yield from ((given.statement(each), FROM_ELSEWHERE) for each in used)


def leave(texts: Mapping[str, str], reason: str) -> list[Migration]:
    """Return the files of a program unchanged, with a note at each `amp.initialize`.

    Args:
        texts: The texts of the files by path.
        reason: The note; without an `amp.initialize`, it is at the first import of Apex.
    """
    program = Program.read(Source(texts))
    source = program.source
    imports = [each for each in inner(source.tree) if isinstance(each, ast.Import | ast.ImportFrom)]
    apex = [each for each in imports if imports_apex(program, each)]
    places = [each.statement for each in program.initializes] or apex[:1] or imports[:1]
    return _left(source, [(each, reason + LEFT) for each in places])


def _written(program: Program, target: Target, edits: Edits) -> list[Migration]:
    """Return the rewritten files."""
    given, texts = program.source, list[str]()
    for file, lines in zip(given.files, rendered_lines(given, edits), strict=True):
        tests = [node.test for node in inner(file.module) if isinstance(node, ast.If)]
        answered = {given.code(each) for each in tests if isinstance(each, ast.Constant)}
        imports = [*target.imports]
        if target.shared is not None:
            imports.append(target.shared.import_in(file.name))
        texts.append(
            with_imports(
                "\n".join(line.text for line in lines),
                imports,
                target.preamble,
                program.imports.of(file.module).reexported(),
                answered,
            )
        )
    done = rewritten(given, edits, texts)
    if target.shared is not None:
        done.append(Migration(None, target.shared.text, (), target.shared.name))
    return done


def rewritten(source: Source, edits: Edits, texts: Iterable[str]) -> list[Migration]:
    """Return the rewritten files, with the notes of their edits."""
    return [_migration(source, *each, edits) for each in zip(source.files, texts, strict=True)]


def _migration(source: Source, file: File, text: str, edits: Edits) -> Migration:
    notes = {
        Note(source.number(node.lineno), reason)
        for node, reasons in edits.notes.items()
        if source.file(node) is file
        for reason in reasons
    }
    before = file.restored(file.given)
    return Migration(before, file.restored(text), tuple(sorted(notes)), file.name)


def _outside_autocast(
    program: Program, target: Target, edits: Edits
) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement whose calls should be under autocast after the edits, and are not."""
    files = rendered_lines(program.source, edits)
    numbers = [line.number for lines in files for line in lines for _ in line.text.split("\n")]
    texts = ["\n".join(line.text for line in lines) for lines in files]
    names = [each.name for each in program.source.files]
    after = Source(dict(zip(names, texts, strict=True)))
    starts = [0, *accumulate(text.count("\n") + 1 for text in texts)]
    for call in uncovered(after, program.models, target.object):
        at = names.index(after.file(call).name)
        statement = program.source.statement_at(numbers[starts[at] + after.number(call.lineno) - 1])
        yield statement, UNCOVERED.format(after.code(call.func), target.autocast())


def _left(source: Source, reasons: Iterable[tuple[ast.stmt, str]]) -> list[Migration]:
    """Return the unchanged files, with comments that say why nothing was rewritten."""
    edits = Edits()
    for statement, reason in reasons:
        edits.notes[statement].append(reason)
    texts = ["\n".join(line.text for line in lines) for lines in rendered_lines(source, edits)]
    return rewritten(source, edits, texts)


def _stars(source: Source) -> list[tuple[ast.stmt, str]]:
    """Return each `from ... import *` of a part of Apex whose names are unknown, with a note."""
    return [
        (node, STARS)
        for node in inner(source.tree)
        if isinstance(node, ast.ImportFrom) and not node.level and node.names[0].name == "*"
        if is_apex(node.module or "") and plain(node.module or "") not in STARRED
    ]
