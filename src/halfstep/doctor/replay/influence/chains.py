"""Backwards of a program's own autograd functions that ignore the gradient from above.

By the chain rule, a backward multiplies by the gradient that it is given. The backward pass of the
last step runs twice, from a gradient of 1 and from one of -2 at the loss. A backward that is given
other gradients, and returns the same ones, has cut the chain. Reversal, straight-through
estimators, clipping and normalising all change at least the sign of their result. A backward that
returns nothing but zeros, as of a saturated function, is asked again at small random inputs.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.internals import forward_class
from halfstep.doctor.record.influence import CutChain
from halfstep.doctor.record.sites import is_of_user, site
from halfstep.doctor.tape.tape import random_state
from halfstep.doctor.tensors.graph import NODES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType

    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.signals.values.own_functions import OwnCall

_FACTORS = (1.0, -2.0)


@dataclass(slots=True)
class _Run:
    """One call of a backward.

    Attributes:
        given: Copies of the gradients that it was given.
        made: Copies of those that it returned.
    """

    given: list[torch.Tensor]
    made: list[torch.Tensor]


def cut_chains(forwards: Forwards, calls: Sequence[OwnCall] = ()) -> Iterator[CutChain]:
    """Yield the autograd functions whose gradients do not depend on those that they are given.

    Args:
        forwards: The forward of the step.
        calls: The calls of autograd functions in it.
    """
    losses = [each for each in forwards.ends if each.requires_grad]
    nodes, leaves = _nodes(losses)
    if not nodes:
        return
    state = random_state(everything=True)
    try:
        first, second = (_runs(losses, leaves, nodes, factor) for factor in _FACTORS)
    except Exception:  # noqa: BLE001  # a backward that cannot run twice
        return
    finally:
        state.restore()
    seen = set()
    for node, kind in nodes.items():
        one, other = first.get(node), second.get(node)
        if one is not None and not _is_loss(one) and not any(bool(each.any()) for each in one.made):
            call = next((each for each in calls if each.kind is kind), None)
            one, other = (None, None) if call is None else _at_random_inputs(call)
        if kind in seen or one is None or other is None or not _is_cut(one, other):
            continue
        seen.add(kind)
        code = backward_of(kind)
        assert code is not None
        line, value = _return(code)
        is_same_shape = {each.shape for each in one.made} == {each.shape for each in one.given}
        yield CutChain(
            kind.__name__,
            [*nodes.values()].count(kind),
            sum(each.numel() for each in one.made),
            _multiplied(value, code) if is_same_shape else "",
            site((code.co_filename, line, code.co_name)),
        )


def _nodes(losses: Sequence[torch.Tensor]) -> tuple[dict[Any, type[Any]], list[torch.Tensor]]:
    """Return the user's autograd functions in a graph, by node, and its leaves."""
    waiting: list[Any] = [each.grad_fn for each in losses if each.grad_fn is not None]
    seen = dict.fromkeys(waiting)
    leaves = []
    while waiting and len(seen) < NODES:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        below = [each for each, _ in node.next_functions if each is not None and each not in seen]
        seen |= dict.fromkeys(below)
        waiting += dict.fromkeys(below)
    kinds = {each: kind for each in seen if (kind := forward_class(each)) is not None}
    return {each: kind for each, kind in kinds.items() if backward_of(kind)}, leaves


def backward_of(kind: type[Any]) -> CodeType | None:
    """Return the code of a function's backward, if it is the user's."""
    code = getattr(inspect.unwrap(getattr(kind, "backward", None) or kind), "__code__", None)
    return code if code is not None and is_of_user(code.co_filename) else None


def _runs(
    losses: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    nodes: Iterable[Any],
    factor: float,
) -> dict[Any, _Run]:
    """Run a backward pass; return what the nodes were given and what they returned."""
    runs: dict[Any, _Run] = {}

    def before(node: Any) -> Any:
        def note(given: Any) -> None:
            runs[node] = _Run(_copies(given), [])

        return note

    def after(node: Any) -> Any:
        def note(made: Any, _: Any) -> None:
            runs[node].made = _copies(made)

        return note

    hooks = [each.register_prehook(before(each)) for each in nodes]
    hooks += [each.register_hook(after(each)) for each in nodes]
    try:
        torch.autograd.grad(
            losses,
            leaves,
            [torch.full_like(each, factor) for each in losses],
            retain_graph=True,
            allow_unused=True,
        )
    finally:
        for each in hooks:
            each.remove()
    return runs


def _at_random_inputs(call: OwnCall) -> tuple[_Run, _Run] | tuple[None, None]:
    """Return two runs of the backward of a function of one tensor, from opposite gradients."""
    places = [at for at, each in enumerate(call.args) if isinstance(each, torch.Tensor)]
    if len(places) != 1 or not call.args[places[0]].is_floating_point():
        return None, None
    tensor = call.args[places[0]]
    generator = torch.Generator().manual_seed(0)
    leaf = (0.5 * torch.randn(tensor.shape, generator=generator)).to(tensor).requires_grad_()
    args = [leaf if at == places[0] else each for at, each in enumerate(call.args)]
    runs = []
    for factor in _FACTORS:
        made = call.kind.apply(*args)
        if not isinstance(made, torch.Tensor) or not made.requires_grad:
            return None, None
        given = torch.full_like(made, 3 * factor)
        runs.append(_Run([given], _copies(torch.autograd.grad(made, leaf, given))))
    return runs[0], runs[1]


def _copies(gradients: Any) -> list[torch.Tensor]:
    return [each.detach().clone() for each in gradients if isinstance(each, torch.Tensor)]


def _is_cut(one: _Run, other: _Run) -> bool:
    """Return whether a backward returned the same gradients for other ones, and no zeros."""
    return (
        len(one.given) == len(other.given) > 0
        and len(one.made) == len(other.made) > 0
        and not any(map(torch.equal, one.given, other.given))
        and not _is_loss(one)
        and all(map(torch.equal, one.made, other.made))
        and any(bool(each.any()) for each in one.made)
    )


def _is_loss(run: _Run) -> bool:
    """Return whether a function is given 1: it may be the loss, and then take it for granted."""
    return all(bool((each == 1).all()) for each in run.given)


def _return(code: CodeType) -> tuple[int, ast.expr | None]:
    """Return the line of the last return statement of a function, and its value."""
    first = code.co_firstlineno
    try:
        lines = inspect.getblock(linecache.getlines(code.co_filename)[first - 1 :])
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (SyntaxError, tokenize.TokenError):  # a lambda
        return first, None
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Return)]
    if not found:
        return first, None
    last = max(found, key=lambda each: each.lineno)
    is_one_line = last.lineno == last.end_lineno and len(found) == 1
    return first + last.lineno - 1, last.value if is_one_line else None


def _multiplied(value: ast.expr | None, code: CodeType) -> str:
    """Return a return statement with its one gradient multiplied; "" if that is not possible."""
    names = code.co_varnames[: code.co_argcount]
    if value is None or len(names) != 2:
        return ""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    changed = [not (isinstance(each, ast.Constant) and each.value is None) for each in parts]
    if sum(changed) != 1:
        return ""
    gradient = ast.Name(names[1])
    given = ", ".join(
        ast.unparse(ast.BinOp(gradient, ast.Mult(), each) if is_gradient else each)
        for each, is_gradient in zip(parts, changed, strict=True)
    )
    return f"return {given}"
