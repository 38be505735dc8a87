"""The whole way: source in, rewritten source and what a person has to look at out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from halfstep.errors import UserError, closest
from halfstep.migrate.imports import with_imports
from halfstep.migrate.layout import noted
from halfstep.migrate.names import calls, used_names
from halfstep.migrate.placement import names_at_home, place
from halfstep.migrate.program import INITIALIZE, Clip, Program
from halfstep.migrate.recipes import recipe_argument
from halfstep.migrate.rewrite import Note, Rewriter
from halfstep.migrate.targets import Target, engine_target, torch_target

TARGETS = ("halfstep", "torch")
AMP = {f"apex.amp.{name}" for name in ("master_params", "state_dict", "load_state_dict")}
NO_INITIALIZE = (
    "no amp.initialize in this file; build {} where amp is initialized, and pass it to here"
)
SEVERAL = (
    "amp.initialize is called for other models or optimizers too, and {} that takes amp's place is "
    "one; call it once, amp.initialize([model1, model2], [optimizer1, optimizer2], ...), and "
    "migrate again"
)


@dataclass(frozen=True, slots=True)
class Migration:
    """A rewritten program.

    Attributes:
        before: The program as it was.
        after: The program on its target.
        notes: What was left for a person, in the order of lines.
    """

    before: str
    after: str
    notes: tuple[Note, ...]

    def diff(self, name: str) -> str:
        """Return a unified diff; `name` is what the file is called in it."""
        return "".join(
            difflib.unified_diff(
                self.before.splitlines(keepends=True),
                self.after.splitlines(keepends=True),
                f"a/{name}",
                f"b/{name}",
            )
        )


def migrate(source: str, to: str = "halfstep", *, name: str = "program") -> Migration:
    """Rewrite a program that was written for Apex's amp.

    Args:
        source: The program.
        to: "halfstep" for `halfstep.Engine`, "torch" for `torch.amp`.
        name: What to call it in errors.

    Raises:
        UserError: If there is no such target, or the program is no Python.
    """
    if to not in TARGETS:
        raise UserError(f"--to is {to!r}; allowed: {', '.join(TARGETS)}{closest(to, TARGETS)}")
    try:
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=False)
    except cst.ParserSyntaxError as error:
        raise UserError(
            f"{name}, line {error.raw_line}: not Python ({error.message}); migrate a program that "
            "Python can read"
        ) from error
    program = Program.read(wrapper.module)
    positions = wrapper.resolve(PositionProvider)
    where = place(program, "engine" if to == "halfstep" else "scaler")
    if to == "halfstep":
        program.clips = _clips_of_an_engine(program)
    target: Target = (
        engine_target(program, where.object)
        if to == "halfstep"
        else torch_target(program, where.object)
    )
    refused = _refused(program, target)
    if refused:
        notes = [Note(positions[node].start.line, reason) for node, reason in refused.items()]
        module = wrapper.module.visit(_Annotate(refused))
        return Migration(source, module.code, tuple(sorted(notes)))
    rewriter = Rewriter(program, target, where, positions)
    body = rewriter.suite(list(wrapper.module.body))
    module = wrapper.module.with_changes(body=body)
    if program.imports.bound:
        module = with_imports(module, target.imports, target.preamble, rewriter.rebound)
    return Migration(source, module.code, tuple(sorted(rewriter.notes)))


def _clips_of_an_engine(program: Program) -> list[Clip]:
    """Return the clips that an engine can do: one limit, for all, known where it is built."""
    known = names_at_home(program)
    limits = {(clip.setting, clip.limit, clip.condition) for clip in program.clips if clip.setting}
    whose = {clip.whose for clip in program.clips}
    if len(limits) != 1 or (program.several_optimizers and len(whose) < len(program.optimizers)):
        return []
    _, limit, condition = limits.pop()
    parts = [cst.parse_expression(text) for text in (limit, condition) if text]
    return program.clips if all(used_names(part) <= known for part in parts) else []


def _refused(program: Program, target: Target) -> dict[cst.CSTNode, str]:
    """Return the statements because of which nothing can be translated, with the reason."""
    refused: dict[cst.CSTNode, str] = {}
    trained = [each for each in program.initializes if each.optimizers]
    several = len({(*each.models, *each.optimizers) for each in trained}) > 1

    class Look(cst.CSTVisitor):
        def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802
            for call in calls(node):
                name = program.imports.qualified(call.func)
                if name == INITIALIZE:
                    reason = target.refusal(recipe_argument(call))
                    if several and any(each.call is call for each in trained):
                        reason = SEVERAL.format(target.called)
                    if reason is not None:
                        refused[node] = reason
                elif not program.initializes and name in AMP:
                    refused[node] = NO_INITIALIZE.format(target.called)

        def visit_With(self, node: cst.With) -> None:  # noqa: N802
            if not program.initializes and program.is_scale_loss(node):
                refused[node] = NO_INITIALIZE.format(target.called)

    program.module.visit(Look())
    return refused


class _Annotate(cst.CSTTransformer):
    """Puts reasons before statements, and changes nothing else."""

    def __init__(self, reasons: dict[cst.CSTNode, str]) -> None:
        super().__init__()
        self._reasons = reasons

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Comment on a statement."""
        updated = super().on_leave(original_node, updated_node)
        reason = self._reasons.get(original_node)
        if reason is None:
            return updated
        assert isinstance(updated, cst.BaseStatement)
        return noted(updated, [reason])
