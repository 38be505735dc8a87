"""What autograd saves for the backward pass, kept in a few bits an element.

A pair of saved-tensor hooks. The operator that runs tells how many bits its tensors take
(`Store.during`); without one a tensor stays as it is. A tensor that several operators save is kept
once, whatever its views, and as it is where one of them needs that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from halfstep.kernels.packing import DTYPES, Draw, Packed, pack

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST = 4096
"""Elements below which a tensor is left alone: statistics, biases, a classifier's outputs."""

_UNCHANGED = frozenset(
    {
        "ToCopyBackward0", "TBackward0", "ViewBackward0", "TransposeBackward0", "PermuteBackward0",
        "UnsafeViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0", "AliasBackward0",
        "SelectBackward0", "SliceBackward0", "SplitBackward0", "SplitWithSizesBackward0",
        "ChunkBackward0", "UnbindBackward0", "SqueezeBackward0", "SqueezeBackward1",
        "UnsqueezeBackward0", "CloneBackward0", "AsStridedBackward0",
    }
)  # fmt: skip
"""Nodes that give a parameter in another format or shape."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor as it is, which nothing may change before the backward pass."""

    tensor: torch.Tensor
    version: int

    def unchanged(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: If it has been changed since; torch itself asks only without hooks.
        """
        version = self.tensor._version
        if version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a tensor of shape {list(self.tensor.shape)} is at version "
                f"{version}; expected version {self.version}"
            )
        return self.tensor


class Kept:
    """A tensor that at least one operator has saved.

    Attributes:
        packed: It in a few bits an element; None where it is kept whole.
        whole: It as it is, where an operator needs that.
        storage: Its memory, which may be freed, but whose address is not given to another.
    """

    __slots__ = ("__weakref__", "packed", "storage", "whole")

    def __init__(self, packed: Packed | None, whole: Whole | None, storage: Any) -> None:
        self.packed = packed
        self.whole = whole
        self.storage = storage


@dataclass(frozen=True, slots=True)
class Saved:
    """What one operator has saved: a view of what is kept."""

    kept: Kept
    size: torch.Size
    stride: tuple[int, ...]


@dataclass(slots=True)
class Draws:
    """Where the random numbers of stochastic rounding come from.

    Each forward pass has numbers of its own, each thread of it a stream, and each tensor takes the
    next ones, so that a step is drawn the same again after a resume.

    Attributes:
        seed: Key of the generator.
        rank: Of this process, among those that train together.
        forwards: Forward passes so far.
        taken: Groups drawn in this forward pass, by device.
    """

    seed: int
    rank: int = 0
    forwards: int = 0
    taken: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_forward(self) -> None:
        """Go on to the numbers of the next forward pass."""
        self.forwards += 1
        self.taken.clear()

    def take(self, groups: int, device: torch.device) -> Draw:
        """Return the numbers of the next `groups` groups on `device`, to one thread alone."""
        place = device.index or 0
        with self._lock:
            taken = self.taken.get(place, 0)
            self.taken[place] = taken + groups
        return Draw(
            self.seed, self.rank * _DEVICES + place, self.forwards * _GROUPS_A_FORWARD + taken
        )


Listener = Callable[[torch.Tensor, Whole | Saved], None]

_DEVICES = 256
_GROUPS_A_FORWARD = 2**28


class Store:
    """Saved tensors of one engine's models.

    Args:
        group: Elements that share their levels.
        draws: Random numbers.
    """

    def __init__(self, group: int, draws: Draws) -> None:
        self.group = group
        self.draws = draws
        self._kept: WeakValueDictionary[tuple[int, ...], Kept] = WeakValueDictionary()
        self._here = threading.local()
        self._listeners: list[Listener] = []

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Tell `listener` of each tensor that any thread saves meanwhile, and how."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def during(
        self, bits: int | None, smallest: int = 0, whole: tuple[torch.Tensor, ...] = ()
    ) -> Iterator[None]:
        """Keep what this thread saves meanwhile in `bits` bits an element; None for all of them.

        Tensors of fewer than `smallest` elements, and those in the memory of `whole`, stay as they
        are.
        """
        before = self._rule
        self._here.rule = bits, smallest, {each.untyped_storage().data_ptr() for each in whole}
        try:
            yield
        finally:
            self._here.rule = before

    @property
    def _rule(self) -> tuple[int | None, int, set[int]]:
        """What `during` was given in this thread."""
        rule: tuple[int | None, int, set[int]] = getattr(self._here, "rule", (None, 0, set()))
        return rule

    def _bits_of(self, tensor: torch.Tensor) -> int | None:
        """Return the bits that this thread keeps a tensor in now; None for all of them."""
        bits, smallest, whole = self._rule
        if tensor.numel() < smallest or tensor.untyped_storage().data_ptr() in whole:
            return None
        return bits

    def is_asked(self) -> bool:
        """Tell whether autograd gives this store what this thread saves.

        Within activation checkpointing it does not: another pair of hooks stands before this one,
        and the same operators are run again later, outside of every context.
        """
        ignore_is_tracing = True
        autograd = torch._C._autograd  # noqa: SLF001  (there is no public way to ask)
        hooks = autograd._top_saved_tensors_default_hooks(ignore_is_tracing)  # noqa: SLF001
        return hooks is not None and hooks[0] == self.save

    def save(self, tensor: torch.Tensor) -> Whole | Saved:
        """Keep what autograd saves; the hook that packs."""
        saved = self._save(tensor)
        for listener in self._listeners:
            listener(tensor, saved)
        return saved

    def _save(self, tensor: torch.Tensor) -> Whole | Saved:
        if not compressible(tensor) or is_parameter(tensor):
            return _whole(tensor)
        key = _key(tensor)
        kept = self._kept.get(key)
        bits = self._bits_of(tensor)
        if kept is None:
            storage = StorageWeakRef(tensor.untyped_storage())
            if bits is None:
                kept = Kept(None, _whole(tensor), storage)
            else:
                kept = Kept(self.pack(tensor, bits), None, storage)
            self._kept[key] = kept
        elif bits is None and kept.whole is None:
            kept.whole = _whole(tensor)
            kept.packed = None
        return Saved(kept, tensor.size(), tensor.stride())

    def pack(self, tensor: torch.Tensor, bits: int) -> Packed:
        """Round a dense tensor to `bits` bits an element, in the order of its memory."""
        groups = -(-tensor.numel() // self.group)
        draw = self.draws.take(groups, tensor.device)
        return pack(in_memory_order(tensor), bits, group=self.group, draw=draw)

    def restore(self, saved: Whole | Saved) -> torch.Tensor:
        """Give back what autograd saved; the hook that unpacks.

        Raises:
            RuntimeError: If the backward pass is to be differentiated itself.
        """
        if isinstance(saved, Whole):
            return saved.unchanged()
        kept = saved.kept
        packed = kept.packed  # once: another thread may keep the tensor whole from now on
        if packed is not None:
            refuse_second_derivative()
            return packed.unpack().as_strided(saved.size, saved.stride)
        assert kept.whole is not None, "a kept tensor is packed or whole"
        whole = kept.whole.unchanged()
        return whole.as_strided(saved.size, saved.stride, whole.storage_offset())


def held(saved: Whole | Saved) -> tuple[tuple[torch.Tensor, ...], bool]:
    """Return the tensors that memory holds of what was saved, and whether they are compressed.

    Masks and indexes of our own functions are bytes, which no other operator saves.
    """
    if isinstance(saved, Saved):
        packed = saved.kept.packed
        if packed is not None:
            return (packed.codes, packed.low, packed.step), True
        assert saved.kept.whole is not None, "a kept tensor is packed or whole"
        saved = saved.kept.whole
    return (saved.tensor,), saved.tensor.dtype == torch.uint8


def uncompressed() -> saved_tensors_hooks:
    """Let autograd save tensors as they are meanwhile, within a forward pass that compresses."""
    return saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor)


def refuse_second_derivative() -> None:
    """Refuse `create_graph=True`, whose graph would hold rounded tensors as if they were exact.

    Raises:
        RuntimeError: In a backward pass that builds a graph.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "compressed activations have no second derivative: create_graph=True differentiates a "
            "graph whose tensors are kept in a few bits; compute this loss under a recipe without "
            "'activations', or outside engine.autocast()"
        )


def compressible(tensor: torch.Tensor, *, dense: bool = True) -> bool:
    """Tell whether a tensor is large, floating, a plain one, and, where that matters, dense."""
    return (
        tensor.dtype in DTYPES
        and tensor.numel() >= SMALLEST
        and type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and (not dense or is_dense(tensor))
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether the elements fill a range of memory, each once, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor as one of one dimension, `[elements]`, in the order of its memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def is_parameter(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a parameter, a view of one, or one in another format."""
    base = tensor._base if tensor._is_view() else tensor  # noqa: SLF001  (no public name)
    if isinstance(base, nn.Parameter):  # one that is frozen has no node
        return True
    if tensor.is_leaf:
        return tensor.requires_grad
    node = tensor.grad_fn
    while node is not None and node.name() in _UNCHANGED:
        node = node.next_functions[0][0]
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


def _key(tensor: torch.Tensor) -> tuple[int, ...]:
    """Tell a range of memory at a time: views of any shape have the same key."""
    return (
        tensor.untyped_storage()._cdata,  # noqa: SLF001  (its address; there is no public name)
        tensor._version,
        int(tensor.storage_offset()),
        tensor.numel(),
        DTYPES.index(tensor.dtype),
    )


def _whole(tensor: torch.Tensor) -> Whole:
    """Keep a tensor without its node, which keeps the tensor: they would never be freed."""
    version = tensor._version
    return Whole(tensor if tensor.is_leaf else tensor.detach(), version)
