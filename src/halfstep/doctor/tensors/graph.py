"""What the autograd graph of a loss shows: the terms of the loss, and the parameters on its way.

Nodes are identified by the sequence numbers that autograd gives them, so nothing keeps a graph in
memory after its backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from halfstep.doctor.internals import makes_scalar, node_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

Scale = TypeVar("Scale")

TERMS = 256
NODES = 20_000
_LEAF = "AccumulateGrad"
_SUMS = frozenset(
    f"{name}Backward{number}"
    for name in ("Add", "Sub", "Rsub", "Mul", "Div", "Neg", "ToCopy")
    for number in (0, 1)
)
_REDUCTIONS = frozenset({"SumBackward0", "MeanBackward0"})
_JOINS = frozenset({"StackBackward0", "CatBackward0"})
_SHAPES = frozenset({"TBackward0", "ToCopyBackward0", "TransposeBackward0", "ViewBackward0"})
_RESHAPES = (
    _SHAPES
    | {
        f"{name}Backward{number}"
        for name in (
            *("Clone", "Index", "Permute", "Select", "Slice", "Squeeze", "UnsafeView", "Unsqueeze"),
        )
        for number in (0, 1)
    }
    | {"ReshapeAliasBackward0"}
)


def terms_of(losses: Iterable[torch.Tensor]) -> frozenset[int]:
    """Return the terms of the sum of some losses, as sequence numbers of graph nodes.

    Sums of scalars, also of stacked ones, and products and quotients with scalars, are taken apart.

    Args:
        losses: The tensors from which a backward pass starts.

    Returns:
        At most `TERMS` nodes; fewer than all if the graph has more.
    """
    return frozenset(node_number(each) for each in terms_in(losses))


def terms_in(losses: Iterable[torch.Tensor], roots: Iterable[Any] = ()) -> Iterator[Any]:
    """Yield the graph nodes of the same terms.

    Args:
        losses: The tensors from which a backward pass starts.
        roots: Nodes to begin with, too.
    """
    seen: set[int] = set()
    waiting: list[Any] = [*roots, *(each.grad_fn for each in losses)]
    while waiting and len(seen) < TERMS:
        node = waiting.pop()
        if node is None or _kind(node) == _LEAF:
            continue
        number = node_number(node)
        if number in seen:
            continue
        seen.add(number)
        below = [each for each, _ in node.next_functions]
        if _kind(node) in _SUMS and makes_scalar(node):
            waiting += below
        elif _kind(node) in _REDUCTIONS and _kind(below[0]) in _JOINS:
            waiting += [each for each, _ in below[0].next_functions]
        else:
            yield node


def scaled_terms(
    losses: Iterable[torch.Tensor], scales: Mapping[int, Scale]
) -> list[tuple[Scale, frozenset[int]]]:
    """Return the scaled losses in the sum of some losses, with the leaves that they reach.

    Args:
        losses: The tensors from which a backward pass starts.
        scales: The loss scale of each scaled loss, by the sequence number of its graph node.

    Returns:
        For each scaled loss, its scale and the `id` of each leaf. Empty if all have the same scale,
        or if the graph has more than `NODES` nodes.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting: list[Any] = [each.grad_fn for each in losses]
    while waiting and len(seen) < TERMS:
        node = waiting.pop()
        if node is None or _kind(node) == _LEAF or (number := node_number(node)) in seen:
            continue
        seen.add(number)
        if number in scales:
            found[number] = node
        elif _kind(node) in _SUMS and makes_scalar(node):
            waiting += [below for below, _ in node.next_functions]
    if len({scales[number] for number in found}) < 2:
        return []
    terms = [(scales[number], _leaves(node)) for number, node in found.items()]
    return [(scale, leaves) for scale, leaves in terms if leaves]


def _leaves(root: Any) -> frozenset[int]:
    """Return the `id` of each leaf below a node; none for a graph with more than `NODES` nodes."""
    leaves, seen, waiting = set(), {root}, [root]
    while waiting:
        node = waiting.pop()
        if _kind(node) == _LEAF:
            leaves.add(id(node.variable))
        new = {below for below, _ in node.next_functions if below is not None} - seen
        seen |= new
        waiting += new
        if len(seen) > NODES:
            return frozenset()
    return frozenset(leaves)


def passages(
    losses: Iterable[torch.Tensor], owners: Callable[[torch.Tensor], frozenset[int]]
) -> frozenset[tuple[int, int]]:
    """Return which parameters a backward pass passes on its way to other ones.

    Args:
        losses: The tensors from which it starts.
        owners: Returns the numbers of the owners of a parameter.

    Returns:
        Pairs of owners: an operator uses a parameter of the first one, and its other inputs depend
        on parameters of the second one. Empty for a graph with more than `NODES` nodes.
    """
    reach: dict[Any, frozenset[int]] = {}
    weights: set[Any] = set()
    pairs: set[tuple[int, int]] = set()
    waiting: list[Any] = [each.grad_fn for each in losses if each.grad_fn is not None]
    while waiting:
        node = waiting[-1]
        below = [each for each, _ in node.next_functions if each is not None]
        missing = [each for each in below if each not in reach]
        if node not in reach and missing:
            if len(reach) > NODES:
                return frozenset()
            waiting += missing
            continue
        waiting.pop()
        if _kind(node) == _LEAF:
            reach[node] = owners(node.variable)
            weights.add(node)
            continue
        reach[node] = frozenset().union(*(reach[each] for each in below))
        if _kind(node) in _SHAPES and weights.issuperset(below):
            weights.add(node)
        used = frozenset[int]().union(*(reach[each] for each in below if each in weights))
        deeper = frozenset[int]().union(*(reach[each] for each in below if each not in weights))
        pairs |= {(one, other) for one in used for other in deeper if one != other}
    return frozenset(pairs)


def _kind(node: Any) -> str:
    return type(node).__name__


def is_of_probabilities(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the result of a sigmoid or softmax, possibly in another shape."""
    return _maker(tensor) in {"SigmoidBackward0", "SoftmaxBackward0"}


def is_of_sigmoid(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the result of a sigmoid, possibly in another shape."""
    return _maker(tensor) == "SigmoidBackward0"


def _maker(tensor: torch.Tensor) -> str:
    node: Any = tensor.grad_fn
    while _kind(node) in _RESHAPES:
        node = node.next_functions[0][0]
    return _kind(node)
