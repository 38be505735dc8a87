"""Which of several calls of models has made what a loss compares with its targets.

A step may call a model for several batches, such as those of two domains, and compute a loss for
each. The graph of a prediction shows to which call it belongs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from halfstep.doctor.internals import node_number
from halfstep.doctor.tensors.nesting import is_in_graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

Item = TypeVar("Item")
_CALLS = 16
_NODES = 512


class Makers(Generic[Item]):
    """The calls of models since the last loss, with what is known of the inputs of each."""

    def __init__(self) -> None:
        self._calls: list[tuple[Item, frozenset[int]]] = []

    def add(self, known: Item, made: Iterable[torch.Tensor]) -> None:
        """Note a call.

        Args:
            known: What is known of its inputs.
            made: The tensors in its result. Only the numbers of their graph nodes are kept.
        """
        del self._calls[: -_CALLS + 1]
        nodes = frozenset(node_number(each.grad_fn) for each in made if is_in_graph(each))
        self._calls.append((known, nodes))

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def take(self, prediction: Any) -> Item | None:
        """Return what is known of the call that has made a prediction, and forget all calls.

        Args:
            prediction: The tensor that a loss compares with targets.

        Returns:
            None if no call is noted, and if it is unknown which of several calls has made it.
        """
        calls, self._calls = self._calls, []
        if len(calls) < 2:
            return calls[0][0] if calls else None
        wanted = frozenset[int]().union(*[nodes for _, nodes in calls])
        reached = _numbers(getattr(prediction, "grad_fn", None), wanted)
        made = [known for known, nodes in calls if nodes & reached]
        return made[0] if len(made) == 1 else None


def compared(args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what a loss compares: its first argument and its targets; None for one it lacks.

    Args:
        args: Positional arguments of the call.
        options: Keyword arguments of the call.
    """
    prediction = args[0] if args else options.get("input")
    return prediction, args[1] if len(args) > 1 else options.get("target")


def _numbers(root: Any, wanted: frozenset[int]) -> frozenset[int]:
    """Return which nodes a graph has, of some; the graph is not followed below these."""
    seen, waiting, found = {root}, [root] if root is not None else [], set[int]()
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        number = node_number(node)
        if number in wanted:
            found.add(number)
            continue
        below = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= below
        waiting += below
    return frozenset(found)
