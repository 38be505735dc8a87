"""Rewrites a program suite by suite: amp's protocol becomes that of a target.

A suite (the statements of a function, a loop, a branch) is the unit, as what is written at one of
its statements depends on the others: where a step stands, where a forward pass begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from halfstep.migrate.expressions import Expressions
from halfstep.migrate.layout import (
    Suites,
    is_pass,
    leading,
    lines,
    noted,
    preceded,
    with_comments_of,
)
from halfstep.migrate.leftovers import leftovers
from halfstep.migrate.moves import Moves, find_moves, with_unscale, with_update
from halfstep.migrate.names import calls, code, dotted, fresh, statements
from halfstep.migrate.placement import Placement, declared_global
from halfstep.migrate.protocol import (
    Initialized,
    backward_statements,
    initialized,
    is_native,
    native_backward,
)
from halfstep.migrate.regions import autocast_regions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.migrate.program import Program
    from halfstep.migrate.targets import Target


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Something that a person has to look at.

    Attributes:
        line: Line of the program as it was, from 1.
        reason: What could not be translated, and what to write.
    """

    line: int
    reason: str


class Rewriter:
    """Rewrites one program.

    Args:
        program: The facts.
        target: What takes amp's place.
        where: Where it lives.
        positions: Where each node of the program stands.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        where: Placement,
        positions: Mapping[cst.CSTNode, Any],
    ) -> None:
        self.program = program
        self.target = target
        self.notes: list[Note] = []
        self.rebound: set[str] = set()
        self._heads: dict[cst.BaseStatement, tuple[cst.EmptyLine, ...]] = {}
        self._where = where
        self._positions = positions
        self._result = fresh("result", program.names)
        self._pending: list[list[str]] = [[]]
        self._in_switch = False
        self._in_autocast = False
        self._norm_is_there = False
        self._reachable = where.everywhere

    def report(self, node: cst.CSTNode, reason: str) -> None:
        """Note why something at `node` was left; the comment goes before its statement."""
        note = Note(self._positions[node].start.line, reason)
        if note not in self.notes:
            self.notes.append(note)
            self._pending[-1].append(reason)

    def suite(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Rewrite the statements of a suite."""
        body = self._without_switches(body)
        moves = find_moves(self.program, body, norms=self.target.zeroes_itself)
        covered = self._in_autocast or not self._reachable
        regions = [] if covered else autocast_regions(self.program, body)
        done: list[cst.BaseStatement] = []
        inside: list[cst.BaseStatement] = []
        orphans: list[cst.EmptyLine] = []
        for place, statement in enumerate(body):
            region = next((each for each in regions if each[0] <= place <= each[1]), None)
            written = self._statement(body, place, moves, covered=region is not None)
            if not written:
                # Comments before a statement that goes away may head what follows.
                orphans += leading(statement)
            elif orphans:
                if any(line.comment is not None for line in orphans) or not leading(written[0]):
                    written[0] = preceded(written[0], orphans)
                orphans = []
            if region is None:
                done += written
                continue
            inside += written
            if place == region[1]:
                done += self._under_autocast(inside)
                inside = []
        return done if self.target.zeroes_itself else with_update(self.target.object, done)

    def _under_autocast(self, inside: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        if not inside:
            return []
        head = lines(f"{self.target.autocast()}\n    pass")[0]
        first = inside[0].with_changes(leading_lines=())
        block = cst.IndentedBlock(body=[first, *inside[1:]])
        return [head.with_changes(body=block, leading_lines=leading(inside[0]))]

    def _statement(
        self, body: Sequence[cst.BaseStatement], place: int, moves: Moves, *, covered: bool
    ) -> list[cst.BaseStatement]:
        statement = body[place]
        self._pending.append([])
        before = self._in_autocast, self._norm_is_there
        self._in_autocast = self._in_autocast or covered
        self._norm_is_there = self._norm_is_there or place in moves.steps_before
        written = [] if place in moves.dropped else self._translate(body, statement)
        self._in_autocast, self._norm_is_there = before
        reasons = self._pending.pop()
        if not written:
            self._pending[-1] += reasons
            return []
        if written[0] is not statement:
            written[0] = with_comments_of(statement, written[0])
        if statement in self._heads:
            written[0] = preceded(written[0], self._heads[statement])
        if reasons:
            written[0] = noted(written[0], reasons)
        if not self.target.zeroes_itself:
            return with_unscale(self.program, self.target.object, statement, written)
        if place in moves.steps_before:
            step = self.target.step(self._named(moves.steps_before[place]))
            first = lines(f"{self._result} = {step}")[0]
            first = first.with_changes(leading_lines=leading(written[0]))
            written = [first, written[0].with_changes(leading_lines=()), *written[1:]]
        return written

    def _translate(
        self, body: Sequence[cst.BaseStatement], statement: cst.BaseStatement
    ) -> list[cst.BaseStatement]:
        given = initialized(self.program, statement)
        if given is not None:
            return self._initialize(statement, given)
        if self.program.is_scale_loss(statement):
            assert isinstance(statement, cst.With)
            return self._scaled(statement)
        written = self._optimizer_call(body, statement)
        if written is not None:
            return written
        loss = native_backward(statement) if self._in_switch else None
        if loss is not None:
            return lines(self.target.backward_text(loss, [], "", None))
        return self._if(statement) if isinstance(statement, cst.If) else [self._inner(statement)]

    def _optimizer_call(
        self, body: Sequence[cst.BaseStatement], statement: cst.BaseStatement
    ) -> list[cst.BaseStatement] | None:
        """Rewrite a step, and what an engine does itself: zero_grad and clipping; None if none."""
        stepped = self.program.method_call(statement, "step")
        if stepped is not None and stepped in self.program.optimizers:
            return self._step(statement, stepped)
        if not self.target.zeroes_itself:
            return None
        owner = self.program.method_call(statement, "zero_grad")
        if owner is not None:
            return self._zero_grad(body, owner)
        if isinstance(statement, cst.SimpleStatementLine) and self.program.clip_of(statement):
            return self._clip(statement)
        return None

    def _initialize(
        self, statement: cst.BaseStatement, given: Initialized
    ) -> list[cst.BaseStatement]:
        if not given.initialize.optimizers:
            self.report(
                statement,
                "amp.initialize without an optimizer; for inference alone write torch.autocast "
                "around the forward pass",
            )
            return [statement]
        for reason in self.target.reasons(given.recipe):
            self.report(statement, reason)
        written = lines(self.target.setup(given.initialize, given.recipe, on=True))
        return written if given.rest is None else [*written, *lines(given.rest)]

    def _scaled(self, statement: cst.With) -> list[cst.BaseStatement]:
        found = backward_statements(self.program, self.target, statement)
        if isinstance(found, str):
            self.report(statement, found)
            return [statement]
        for reason in found.reasons:
            self.report(statement, reason)
        written = [] if found.first is None else lines(found.first)
        for inner in statements(statement.body):
            if inner in found.backwards:
                written.append(with_comments_of(inner, lines(found.backwards[inner])[0]))
            else:
                written += self.suite([inner])
        return written

    def _step(self, statement: cst.BaseStatement, optimizer: str) -> list[cst.BaseStatement]:
        if any(dotted(call.func) == f"{optimizer}.step" and call.args for call in calls(statement)):
            self.report(statement, f"{optimizer}.step() has arguments, which amp did not support")
            return [statement]
        return lines(self.target.step(self._named(optimizer)))

    def _named(self, optimizer: str) -> str:
        """Return what names an optimizer to the target: "" where it is the engine's only one."""
        alone = self.target.zeroes_itself and not self.program.several_optimizers
        return "" if alone else optimizer

    def _zero_grad(self, body: Sequence[cst.BaseStatement], owner: str) -> list[cst.BaseStatement]:
        optimizer = self._optimizer_of(owner)
        if any(self._is_step_of(statement, optimizer) for statement in body):
            return []  # the engine's step drops them
        only = f"optimizers=[{optimizer}]" if self.program.several_optimizers and optimizer else ""
        return lines(f"{self.target.object}.zero_grad({only})")

    def _optimizer_of(self, owner: str) -> str | None:
        """Return the optimizer that `x.zero_grad()` is about, where x is one or its model."""
        if owner in self.program.optimizers:
            return owner
        for each in self.program.initializes:
            if owner in each.models and len(each.models) == len(each.optimizers):
                return each.optimizers[each.models.index(owner)]
        return None

    def _is_step_of(self, statement: cst.BaseStatement, optimizer: str | None) -> bool:
        stepped = self.program.method_call(statement, "step")
        if stepped is None or stepped not in self.program.optimizers:
            return False
        return not self.program.several_optimizers or optimizer in {None, stepped}

    def _clip(self, statement: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
        clip = self.program.clip_of(statement)
        assert clip is not None
        if not clip.value_used:
            return []
        if not self._norm_is_there:
            self.report(
                statement,
                f"the engine clips in its step, which tells the norm: {self._result} = "
                f"{self.target.object}.step(), {self._result}.grad_norm",
            )
            return [statement]
        replaced = code(statement).replace(code(clip.call), f"{self._result}.grad_norm")
        return lines(replaced)

    def _if(self, statement: cst.If) -> list[cst.BaseStatement]:
        """Rewrite the branches of an `if`."""
        before = self._in_switch
        self._in_switch = before or self.program.holds_scale_loss(statement)
        inner = self._inner(statement)
        self._in_switch = before
        assert isinstance(inner, cst.If)
        if inner.orelse is None:
            if code(inner.test) == "True" != code(statement.test):
                return statements(inner.body)
            if is_pass(inner.body) and not is_pass(statement.body):
                return []
        return [self._completed(statement, inner)]

    def _without_switches(self, body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        """Put in the place of `if fp16: ... else: ...` its branch with amp.

        Where the other branch does the same in plain fp32, what takes amp's place does both.
        """
        flat: list[cst.BaseStatement] = []
        for statement in body:
            amp = self._amp_branch(statement) if isinstance(statement, cst.If) else None
            if amp is None:
                flat.append(statement)
                continue
            inner = self._without_switches(amp)
            self._heads[inner[0]] = (*leading(statement), *self._heads.get(inner[0], ()))
            flat += inner
        return flat

    def _amp_branch(self, statement: cst.If) -> Sequence[cst.BaseStatement] | None:
        """Return the branch with amp of `if fp16: ... else: ...` if the other is its twin."""
        if not isinstance(statement.orelse, cst.Else):
            return None
        first, second = statements(statement.body), statements(statement.orelse.body)
        for amp, other in ((first, second), (second, first)):
            if any(self._is_protocol(each) for each in amp) and all(
                is_native(self.program, each) for each in other
            ):
                return amp
        return None

    def _is_protocol(self, statement: cst.BaseStatement) -> bool:
        return self.program.is_scale_loss(statement) or self.program.clip_of(statement) is not None

    def _completed(self, before: cst.If, after: cst.If) -> cst.If:
        """Set up the target in the branches that did not initialize amp, too."""
        given = self._initialized_in(before)
        if given is None or not given.initialize.optimizers:
            return after
        setup = lines(self.target.setup(given.initialize, given.recipe, on=False))

        def complete(old: cst.BaseSuite, new: cst.BaseSuite) -> cst.BaseSuite:
            if self._initialized_in(old) is not None:
                return new
            kept = [] if is_pass(new) else statements(new)
            return cst.IndentedBlock(body=[*kept, *setup])

        def chain(old: cst.If, new: cst.If) -> cst.If:
            orelse: cst.If | cst.Else = cst.Else(body=cst.IndentedBlock(body=setup))
            if isinstance(old.orelse, cst.If) and isinstance(new.orelse, cst.If):
                orelse = chain(old.orelse, new.orelse)
            elif old.orelse is not None and new.orelse is not None:
                orelse = new.orelse.with_changes(body=complete(old.orelse.body, new.orelse.body))
            return new.with_changes(body=complete(old.body, new.body), orelse=orelse)

        return chain(before, after)

    def _initialized_in(self, node: cst.CSTNode) -> Initialized | None:
        """Return the first `amp.initialize` in a node."""
        found: list[Initialized] = []
        program = self.program

        class Look(cst.CSTVisitor):
            def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:  # noqa: N802  (libcst's)
                given = initialized(program, node)
                if given is not None:
                    found.append(given)

        node.visit(Look())
        return found[0] if found else None

    def _inner(self, statement: cst.BaseStatement) -> cst.BaseStatement:
        """Rewrite the expressions of a statement, and the suites in it."""
        head = statement.visit(Expressions(self.program, self.target, self.report, self.rebound))
        assert isinstance(head, cst.BaseStatement)
        self._report_leftovers(statement, head)
        before = self._reachable
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            self._reachable = before or statement in self._where.reached_from
        inner = head.visit(Suites(self._block))
        self._reachable = before
        assert isinstance(inner, cst.BaseStatement)
        if isinstance(statement, cst.FunctionDef) and isinstance(inner, cst.FunctionDef):
            return declared_global(self._where, statement, inner)
        return inner

    def _block(self, body: cst.BaseSuite) -> cst.BaseSuite:
        before = statements(body)
        after = self.suite(before)
        if isinstance(body, cst.SimpleStatementSuite):
            same = len(after) == 1 and code(after[0]) == code(before[0])
            return body if same else cst.IndentedBlock(body=after or lines("pass"))
        return body.with_changes(body=after or lines("pass"))

    def _report_leftovers(self, old: cst.BaseStatement, new: cst.BaseStatement) -> None:
        """Say what of Apex a statement still has, unless something was said of it already."""
        if not self._pending[-1]:
            for reason in leftovers(self.program, new, self.rebound):
                self.report(old, reason)
