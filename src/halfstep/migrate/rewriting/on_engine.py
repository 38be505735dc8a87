"""Clips, norms, steps and zeroing with `halfstep.Engine`, which does all of them in its step.

Gradients stay multiplied by the loss scale until the engine's step. So a program that reads or
changes them earlier is not rewritten, unless it only clips them or computes their norm: the engine
does both itself.
"""

from __future__ import annotations

import ast
import builtins
import re
from typing import TYPE_CHECKING, Any

from halfstep.migrate.program.names import bound, calls, dotted, fresh, last_name, parameters, paths
from halfstep.migrate.program.source import Function, inner
from halfstep.migrate.rewriting import norms
from halfstep.migrate.rewriting.zeroing import models, zeroing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.migrate.analysis.steps import Move
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.analysis.windows import Touch
    from halfstep.migrate.program.render import Edits
    from halfstep.migrate.rewriting.targets import EngineTarget

GRADIENTS = (
    "gradients are still multiplied by the loss scale before the engine's step; to clip them, "
    "write Engine(..., clip_norm=...)"
)
HANDED_OVER = (
    "`{}` may use the gradients of its model, which are still multiplied by the loss scale before "
    "the engine's step"
)
GONE = "gradients are read here, but the engine's step has cleared them"
UNKNOWN_LIMIT = (
    "the limit of this clip is not defined yet at the line that builds the Engine: clip_norm={}"
)
DIFFERENT_LIMITS = (
    "gradients are clipped in several ways, but an Engine clips all gradients in one way"
)
NORM = "the norm of the gradients is known only after the engine's step"
PER_MICRO_BATCH = (
    "with Apex, this clipped after every backward; the engine clips once, before the optimizer step"
)
SCALED_CLIP = (
    "with Apex, this clipped gradients that were still scaled; the engine clips unscaled ones"
)
HALF_CLIP = (
    "under O2, this clipped fp16 gradients that no step used; the engine clips those that it uses"
)
_JUMPS = ast.Continue | ast.Break | ast.Return | ast.Raise
_CHANGES_STEP = re.compile(r"step|adjust|set_lr|update_lr|lr_")
_PURE = {"float", "int", "len", "max", "min", "getattr", "hasattr", "get"}


def on_engine(about: Understanding, target: EngineTarget, edits: Edits) -> None:
    """Rewrite clips, norms, steps and zeroing for an engine."""
    _Clips(about, target, edits).write()
    for move in about.steps:
        if move.statement in edits.replaced:
            continue
        edits.replaced[move.statement] = [target.step(_whose(about, move))]
    zeroing(about, target, edits)


def _whose(about: Understanding, move: Move) -> str:
    """Return the source of the optimizers that a step is limited to; "" for all of them."""
    if not about.program.several_optimizers:
        return ""
    if move.loop is not None:
        whole = {each.optimizers_text for each in about.trained}
        return "" if move.loop in whole else move.loop
    return f"[{move.owner}]"


class _Clips:
    def __init__(self, about: Understanding, target: EngineTarget, edits: Edits) -> None:
        self.about = about
        self.target = target
        self.edits = edits

    def write(self) -> None:
        """Move clips into the engine, and take norms from the result of its step."""
        clips = []
        for touch in self.about.windows.touches:
            if touch.scaled and touch.setting not in {"clip_norm", "clip_value"}:
                continue  # inside scale_loss: with Apex, the gradients were scaled here too
            if touch.setting in {"clip_norm", "clip_value"} and self._is_whole(touch):
                clips.append(touch)
            elif touch.setting != "norm" or touch.step is None:
                after = touch.step is None and any(
                    step.statement.lineno < touch.statement.lineno for step in self.about.steps
                )
                reason = HANDED_OVER.format(touch.given) if touch.given else GRADIENTS
                self.about.leave(touch.statement, GONE if after else reason)
                continue
            self._replace(touch)
        self._limit(clips)

    def _result(self, touch: Touch) -> str:
        """Return the name of the result of a step in the file of a clip or norm."""
        return fresh("result", self.about.program.names_in(touch.statement))

    def _is_whole(self, touch: Touch) -> bool:
        """Tell whether a clip precedes a step and covers all parameters of the optimizer."""
        return touch.step is not None and not (touch.of_model and models(self.about) > 1)

    def _replace(self, touch: Touch) -> None:
        """Remove a clip, or replace a norm by the norm in the result of the step."""
        assert touch.step is not None
        assert touch.head is not None
        if touch.bound_to_place:
            self.about.leave(touch.statement, touch.bound_to_place)
            return
        if touch.setting != "norm" and not touch.value_used:
            self.edits.replaced[touch.statement] = []
            self._note(touch)
            return
        step = touch.step.statement
        if touch.moved and self._at_the_step(touch):
            return
        if touch.moved or touch.scaled or touch.call is None or self._blocked(touch, step):
            self.about.leave(touch.statement, NORM)
            return
        line = f"{self._result(touch)} = {self.target.step(_whose(self.about, touch.step))}"
        if line not in self.edits.before[touch.head]:
            self.edits.before[touch.head].append(line)
        self.edits.replaced[step] = []
        norm = f"{self._result(touch)}.grad_norm"
        if self._is_tensor(touch.call):
            self.target.imports["import torch"] = None
            norm = f"torch.tensor({norm})"
        self.edits.expressions[touch.call] = norm

    def _at_the_step(self, touch: Touch) -> bool:
        """Assign a norm that is computed after every backward at the step instead, if possible.

        Return whether it was possible.
        """
        name = norms.name_of(self.about, touch)
        assert touch.step is not None
        if name is None or touch.call is None or self._blocked(touch, touch.step.statement):
            return False
        zero, norm = "0.0", f"{self._result(touch)}.grad_norm"
        if self._is_tensor(touch.call):
            self.target.imports["import torch"] = None
            zero, norm = f"torch.tensor({zero})", f"torch.tensor({norm})"
        step = touch.step.statement
        line = f"{self._result(touch)} = {self.target.step(_whose(self.about, touch.step))}"
        written = self.edits.replaced.setdefault(step, [line])
        if f"{name} = {norm}" not in written:
            written.append(f"{name} = {norm}")
        self.edits.replaced[touch.statement] = []
        norms.default(self.about, touch, name, zero, self.edits)
        self.edits.notes[step].append(norms.NOTE.format(name))
        if touch.setting != "norm":
            self._note(touch)
        return True

    def _blocked(self, touch: Touch, step: ast.stmt) -> bool:
        """Tell whether a statement between a clip and its step must stay before the step."""
        assert touch.head is not None
        code, optimizers = self.about.program.source.code, self.about.program.optimizers
        if self.about.program.losses_in(touch.head):
            return True
        for each in self._between(touch.head, step):
            if any(isinstance(node, _JUMPS) for node in inner(each)):
                return True
            text = code(each)
            if each is not touch.head and (
                ".grad" in text
                or paths_in(text) & optimizers
                or any(_CHANGES_STEP.match(last_name(call.func)) for call in calls(each))
            ):
                return True
        return False

    def _between(self, head: ast.stmt, step: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the statements from `head` to a step, also those before it in its own branch."""
        around = set(self.about.program.source.above(step))
        for each in self.about.windows.suite(head):
            if head.lineno <= each.lineno < step.lineno:
                if each not in around:
                    yield each
                else:
                    yield from (
                        one
                        for one in inner(each)
                        if isinstance(one, ast.stmt) and one not in around
                        if one.lineno < step.lineno
                    )

    def _is_tensor(self, call: ast.Call) -> bool:
        """Tell whether a program uses the norm that a clip returns as a tensor."""
        source = self.about.program.source
        parent = source.parent[call]
        if isinstance(parent, ast.Attribute):
            return True
        if not isinstance(parent, ast.Assign):
            return False
        names = bound(parent)
        own = {each.name for each in inner(source.tree) if isinstance(each, Function)}
        for node in inner(source.tree):
            if isinstance(node, ast.Attribute) and dotted(node.value) in names:
                return True
            if isinstance(node, ast.Call) and any(dotted(each) in names for each in node.args):
                path = dotted(node.func) or ""
                if path.startswith(("torch.", "dist.")) or last_name(node.func) in own:
                    return True
        return False

    def _note(self, touch: Touch) -> None:
        assert touch.step is not None
        place = touch.step.statement
        if touch.scaled:
            self.edits.notes[place].append(SCALED_CLIP)
        elif touch.moved:
            self.edits.notes[place].append(PER_MICRO_BATCH)
        elif (
            touch.of_model
            and self.about.may_have_masters
            and touch.statement not in self.about.branches.without_amp
        ):
            self.edits.notes[place].append(HALF_CLIP)

    def _limit(self, clips: list[Touch]) -> None:
        """Pass the limit of the clips to the engine."""
        if not clips:
            return
        kinds = _on_both_sides({(clip.setting, clip.limit, clip.tests) for clip in clips})
        whose = {clip.whose for clip in clips}
        program = self.about.program
        short = program.several_optimizers and len(whose) < len(self.about.trained[0].optimizers)
        if len(kinds) > 1 or short:
            for clip in clips:
                self.about.leave(clip.statement, DIFFERENT_LIMITS)
            return
        setting, limit, tests = kinds.pop()
        written = set()
        for clip in clips:
            texts = [self._at_engine(text, clip.statement) for text in (limit, *tests)]
            known = [text for text in texts if text is not None]
            if len(known) < len(texts):
                unknown = UNKNOWN_LIMIT.format(_conditional(limit, tests))
                self.about.leave(clip.statement, unknown)
                return
            written.add(_conditional(known[0], tuple(known[1:])))
        if len(written) > 1:
            self.about.leave(clips[0].statement, DIFFERENT_LIMITS)
        elif written != {"None"}:
            self.target.clip[setting] = written.pop()

    def _at_engine(self, text: str, used: ast.stmt) -> str | None:
        """Return an expression with the same value where the engine is created, or None.

        A name that is not defined there is replaced by the one that it was assigned from.
        """
        expression = ast.parse(text, mode="eval")
        if any(last_name(call.func) not in _PURE for call in calls(expression)):
            return None
        for path in paths(expression) - set(dir(builtins)):
            homes = [each.statement for each in self.about.trained]
            same = all(self._knows(path, home, used) for home in homes)
            known = path if same else next(self._definitions(path, used), None)
            if known is None:
                return None
            text = re.sub(rf"(?<![\w.]){re.escape(path)}\b", known, text)
        return text

    def _definitions(self, path: str, used: ast.stmt) -> Iterator[str]:
        """Yield the names at the line that creates the engine from which a value comes."""
        objects = self.about.program.objects
        home = self.about.trained[0].statement
        for scope, name in objects.definitions(path, used):
            if objects.key_at(name, home) == (scope, name):
                (root,) = paths(ast.parse(name, mode="eval"))
                if all(self._knows(root, each.statement, home) for each in self.about.trained):
                    yield name

    def _knows(self, path: str, home: ast.stmt, used: ast.stmt) -> bool:
        """Tell whether a name has the same value where the engine is created and at `used`."""
        source = self.about.program.source
        functions, users = source.functions(home), source.functions(used)
        if path.startswith("self."):
            makers = [
                each
                for each in inner(source.class_(home) or source.file(home).module)
                if isinstance(each, ast.Assign) and path in bound(each)
            ]
            before = [
                each
                for each in makers
                if each.lineno < home.lineno and source.function(each) is source.function(home)
            ]
            first = [
                each
                for each in makers
                if getattr(source.function(each), "name", "") == "__init__"
                and source.function(each) is not source.function(home)
            ]
            same_class = source.class_(home) is source.class_(used) is not None
            return same_class and (bool(before or first) or not makers)
        for function in users:
            if function not in functions and path in _changed_in(function):
                return False
        for function in functions:
            if path in parameters(function):
                return not any(
                    isinstance(each, ast.Assign | ast.AugAssign | ast.For)
                    and path in bound(each)
                    and each.lineno > home.lineno
                    for each in inner(function)
                )
            made = _lines_that_bind(function, path)
            if made:
                return max(made) < home.lineno
        made = _lines_that_bind(source.file(home).module, path, functions=False)
        if not made and any(path in _globals(each) for each in users + functions):
            return True
        return bool(made) and (bool(functions) or max(made) < home.lineno)


def _on_both_sides(kinds: set[tuple[str, str, tuple[str, ...]]]) -> set[Any]:
    """Return the kinds of clips; merge two equal ones on the two sides of a test into one."""
    if len(kinds) != len({True, False}):
        return kinds
    (one, limit, tests), (two, same, others) = sorted(kinds, key=lambda kind: len("".join(kind[2])))
    test, other = (set(tests) - set(others)), (set(others) - set(tests))
    apart = {f"not ({each})" for each in test} == other and len(test) == 1
    if (one, limit) != (two, same) or not apart:
        return kinds
    return {(one, limit, tuple(each for each in tests if each not in test))}


def paths_in(text: str) -> set[str]:
    """Return the names and attribute chains (`a.b.c`) in a piece of source."""
    return set(re.findall(r"[\w.]+", text))


def _lines_that_bind(node: ast.AST, name: str, *, functions: bool = True) -> list[int]:
    """Return the lines of the statements in a node that bind a name."""
    return [
        each.lineno
        for each in inner(node, functions=functions)
        if isinstance(each, ast.stmt) and each is not node and _binds(each, name)
    ]


def _binds(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return name in {each.asname or each.name.partition(".")[0] for each in names}
        case ast.FunctionDef(name=own) | ast.ClassDef(name=own):
            return own == name
        case ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.With():
            return name in bound(node)
    return False


def _changed_in(function: Function) -> set[str]:
    return {
        name
        for each in inner(function)
        if isinstance(each, ast.Assign | ast.AugAssign | ast.For)
        for name in bound(each)
    }


def _globals(function: Function) -> Iterable[str]:
    return [name for each in inner(function) if isinstance(each, ast.Global) for name in each.names]


def _conditional(limit: str, tests: tuple[str, ...]) -> str:
    constants = {test: ast.parse(test, mode="eval").body for test in tests}
    if any(isinstance(node, ast.Constant) and not node.value for node in constants.values()):
        return "None"  # this code never runs
    tests = tuple(test for test, node in constants.items() if not isinstance(node, ast.Constant))
    if not tests:
        return limit
    if tests == (f"{limit} is not None",):
        return limit
    if tests == (limit,):
        return f"{limit} or None"
    joined = " and ".join(f"({each})" if " or " in each else each for each in tests)
    return f"{limit} if {joined} else None"
