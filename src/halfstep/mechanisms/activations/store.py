"""Stores the tensors that autograd saves for the backward pass in a few bits per element.

The store is a pair of saved-tensor hooks. The operator that is running sets the number of bits
(`Store.during`); otherwise, a tensor is stored unchanged. A tensor that several operators save,
also as different views, is stored once. It is stored unchanged if one of them needs that.
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
from torch.utils.weak import WeakIdKeyDictionary

from halfstep.kernels.memory_order import in_memory_order, is_dense
from halfstep.mechanisms.activations.norm_backward.form import tiles_of
from halfstep.mechanisms.activations.packing import (
    DTYPES,
    Draw,
    Normaliser,
    Packed,
    pack,
    pack_normalised,
)
from halfstep.mechanisms.activations.packing.form import MASK_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST = 4096
"""Tensors with fewer elements are not compressed: statistics, biases, outputs of a classifier."""

_UNCHANGED = frozenset(
    {
        "ToCopyBackward0", "TBackward0", "ViewBackward0", "TransposeBackward0", "PermuteBackward0",
        "UnsafeViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0", "AliasBackward0",
        "SelectBackward0", "SliceBackward0", "SplitBackward0", "SplitWithSizesBackward0",
        "ChunkBackward0", "UnbindBackward0", "SqueezeBackward0", "SqueezeBackward1",
        "UnsqueezeBackward0", "CloneBackward0", "AsStridedBackward0",
    }
)  # fmt: skip
"""Autograd nodes that change only the format, the shape or the view of a tensor."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that is stored unchanged, and must not be changed in place before the backward."""

    tensor: torch.Tensor
    version: int

    def unchanged(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: If the tensor was changed in place after it was saved. torch checks this
                itself only without saved-tensor hooks.
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
        packed: The tensor in a few bits per element; None if it is stored unchanged.
        whole: The unchanged tensor, if an operator needs it; else None.
        storage: A weak reference to the tensor's storage. It lets the memory be freed, but while it
            exists, no other storage has the same address.
    """

    __slots__ = ("__weakref__", "packed", "storage", "whole")

    def __init__(self, packed: Packed | None, whole: Whole | None, storage: Any) -> None:
        self.packed = packed
        self.whole = whole
        self.storage = storage


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that one operator has saved, as a view of a `Kept` tensor."""

    kept: Kept
    size: torch.Size
    stride: tuple[int, ...]


@dataclass(slots=True)
class Draws:
    """Assigns random numbers to the tensors that are rounded stochastically.

    Each forward pass has its own random numbers, with a stream for each device. Each tensor takes
    the next numbers of its stream. So a step that is repeated after a resume draws the same ones.

    Attributes:
        seed: Key of the generator.
        rank: Rank of this process among the processes that train together.
        taken: Number of groups that were drawn in this forward pass, by device index.
    """

    seed: int
    rank: int = 0
    taken: dict[int, int] = field(default_factory=dict)
    _before: int = 0
    _forwards: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def forwards(self) -> int:
        """Number of forward passes so far; reading it waits for the device."""
        for count in self._forwards.values():
            return int(count)
        return self._before

    @forwards.setter
    def forwards(self, number: int) -> None:
        self._before = number
        for count in self._forwards.values():
            count.fill_(number)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Draw inside the context, possibly on fake tensors, without an effect afterwards."""
        kept, self._forwards, self._before = (self._forwards, self._before), {}, self.forwards
        try:
            yield
        finally:
            self._forwards, self._before = kept

    def next_forward(self) -> None:
        """Switch to the random numbers of the next forward pass."""
        self.taken.clear()
        if not self._forwards:
            self._before += 1
        for count in self._forwards.values():
            count.add_(1)

    def take(self, groups: int, device: torch.device) -> Draw:
        """Reserve and return the random numbers for the next `groups` groups on `device`."""
        place = device.index or 0
        with self._lock:
            taken = self.taken.get(place, 0)
            self.taken[place] = taken + groups
            if device not in self._forwards:
                self._forwards[device] = torch.tensor(self.forwards, device=device)
        return Draw(self.seed, self.rank * _DEVICES + place, taken, self._forwards[device])


Listener = Callable[[torch.Tensor, Whole | Saved], None]

_DEVICES = 256


class Store:
    """The saved tensors of one engine's models.

    Args:
        group: Number of elements that share quantization levels.
        draws: The random numbers of the stochastic rounding.
    """

    def __init__(self, group: int, draws: Draws) -> None:
        self.group = group
        self.draws = draws
        self._kept: WeakValueDictionary[tuple[int, ...], Kept] = WeakValueDictionary()
        self._rectified: Any = WeakIdKeyDictionary()  # parameters of layers before rectifiers
        self._here = threading.local()
        self._listeners: list[Listener] = []

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Call `listener` with each tensor that any thread saves in this context, and its form."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def during(
        self, bits: int | None, smallest: int = 0, whole: tuple[torch.Tensor, ...] = ()
    ) -> Iterator[None]:
        """Compress the tensors that this thread saves in this context to `bits` bits per element.

        If `bits` is None, no tensor is compressed. Tensors with fewer than `smallest` elements, and
        tensors in the storages of `whole`, are never compressed.
        """
        before = self._rule
        self._here.rule = bits, smallest, {each.untyped_storage().data_ptr() for each in whole}
        try:
            yield
        finally:
            self._here.rule = before

    def packs_channels(self, values: torch.Tensor) -> bool:
        """Tell whether `pack_normalised` can be called: channels are adjacent, nobody listens."""
        if values.stride(1) != 1 or self._listeners or self._bits_of(values) is None:
            return False
        size = values.numel(), values.size(1)
        return tiles_of(*size, self.group).fit(*size)

    def pack_normalised(self, values: torch.Tensor, by: Normaliser) -> tuple[Packed, torch.Tensor]:
        """Pack the normalised values of a norm layer, to the bits of this `during` context.

        Returns:
            The packed tensor, and the mask of `by.rectified`, which is empty without one.
        """
        bits = self._bits_of(values)
        assert bits is not None, "as `packs_channels` tells"
        draw = self.draws.take(-(-values.numel() // self.group), values.device)
        return pack_normalised(in_memory_order(values), bits, group=self.group, draw=draw, by=by)

    def rectifies(self, owner: torch.Tensor | None) -> None:
        """Remember that a rectifier gets the result of the layer with the parameter `owner`."""
        if owner is not None:
            self._rectified[owner] = True

    def is_rectified(self, owner: torch.Tensor | None) -> bool:
        """Tell whether the mask of a layer's result can be taken in the pass that packs."""
        return owner is not None and owner in self._rectified and self.group == MASK_GROUP

    @property
    def _rule(self) -> tuple[int | None, int, set[int]]:
        """The arguments of the innermost `during` in this thread, with the addresses of `whole`."""
        rule: tuple[int | None, int, set[int]] = getattr(self._here, "rule", (None, 0, set()))
        return rule

    def _bits_of(self, tensor: torch.Tensor) -> int | None:
        """Return the bits for a tensor that this thread saves now; None for no compression."""
        bits, smallest, whole = self._rule
        if tensor.numel() < smallest or tensor.untyped_storage().data_ptr() in whole:
            return None
        return bits

    def is_asked(self) -> bool:
        """Tell whether autograd passes the tensors that this thread saves to this store.

        Within activation checkpointing it does not: checkpointing has its own saved-tensor hooks,
        and it runs the same operators again later, outside of every context.
        """
        ignore_is_tracing = True
        autograd = torch._C._autograd  # noqa: SLF001  (there is no public way to ask)
        hooks = autograd._top_saved_tensors_default_hooks(ignore_is_tracing)  # noqa: SLF001
        return hooks is not None and hooks[0] == self.save

    def save(self, tensor: torch.Tensor) -> Whole | Saved:
        """Store a tensor that autograd saves: the pack hook."""
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
        """Round a dense tensor to `bits` bits per element, in the order of its memory."""
        groups = -(-tensor.numel() // self.group)
        draw = self.draws.take(groups, tensor.device)
        return pack(in_memory_order(tensor), bits, group=self.group, draw=draw)

    def restore(self, saved: Whole | Saved) -> torch.Tensor:
        """Return a tensor that autograd has saved: the unpack hook.

        Raises:
            RuntimeError: If the backward pass builds a graph (`create_graph=True`) of a compressed
                tensor, or an uncompressed tensor was changed in place.
        """
        if isinstance(saved, Whole):
            return saved.unchanged()
        kept = saved.kept
        packed = kept.packed  # read once, because another thread may set it to None
        if packed is not None:
            refuse_second_derivative()
            return packed.unpack().as_strided(saved.size, saved.stride)
        assert kept.whole is not None, "a kept tensor is packed or whole"
        whole = kept.whole.unchanged()
        return whole.as_strided(saved.size, saved.stride, whole.storage_offset())


def held(saved: Whole | Saved) -> tuple[tuple[torch.Tensor, ...], bool]:
    """Return the tensors in memory for a saved tensor, and whether they are compressed.

    uint8 tensors count as compressed: they are the masks and indexes of `functions.py`, and no
    other operator saves this dtype.
    """
    if isinstance(saved, Saved):
        packed = saved.kept.packed
        if packed is not None:
            return (packed.stored,), True
        assert saved.kept.whole is not None, "a kept tensor is packed or whole"
        saved = saved.kept.whole
    return (saved.tensor,), saved.tensor.dtype == torch.uint8


def uncompressed() -> saved_tensors_hooks:
    """Return a context in which autograd saves unchanged tensors, although a store is active."""
    return saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor)


def refuse_second_derivative() -> None:
    """Refuse `create_graph=True`, because its graph would treat rounded tensors as exact.

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
    """Tell whether a tensor is large, of a known dtype, no subclass, strided and, if asked, dense.

    Args:
        tensor: Any tensor.
        dense: Whether the tensor must be dense.
    """
    return (
        tensor.dtype in DTYPES
        and tensor.numel() >= SMALLEST
        and type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and (not dense or is_dense(tensor))
    )


def is_parameter(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a parameter, a view of a parameter, or a cast of a parameter."""
    base = tensor._base if tensor._is_view() else tensor  # noqa: SLF001  (no public name)
    if isinstance(base, nn.Parameter):  # a view of a frozen parameter has no node
        return True
    if tensor.is_leaf:
        return tensor.requires_grad
    node = tensor.grad_fn
    while node is not None and node.name() in _UNCHANGED:
        node = node.next_functions[0][0]
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


def _key(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a key for a range of memory and its version; views of any shape have the same key."""
    return (
        tensor.untyped_storage()._cdata,  # noqa: SLF001  (its address; there is no public name)
        tensor._version,
        int(tensor.storage_offset()),
        tensor.numel(),
        DTYPES.index(tensor.dtype),
    )


def _whole(tensor: torch.Tensor) -> Whole:
    """Store a tensor without its autograd node.

    The node refers to the saved tensor, so a reference from the tensor to the node would be a cycle
    that is never freed.
    """
    version = tensor._version
    return Whole(tensor if tensor.is_leaf else tensor.detach(), version)
