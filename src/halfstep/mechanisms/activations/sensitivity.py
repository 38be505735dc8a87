"""Measures in one step how much noise the rounding of saved tensors adds to gradients, per module.

After ActNN (Chen et al., ICML 2021, arXiv:2104.14129), section 4: at b bits, a saved tensor adds
the variance S / (2^b - 1)^2. S is the sum of range^2 / 6 over all elements, with the range of each
element's group, times the square of the gradient with which the tensor is multiplied. If the
product is the gradient of a parameter, this is the variance of that gradient. If the product is
passed on to earlier layers, as in an activation function, it is noise in the gradients of all these
layers; the relative noise is assumed to be the same in each of them.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from halfstep.kernels.memory_order import in_memory_order
from halfstep.mechanisms.activations.store import Saved, is_parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.mechanisms.activations.packing import Packed
    from halfstep.mechanisms.activations.store import Kept, Whole


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of the tensors that one module saves.

    Attributes:
        elements: Number of elements of the packed tensors.
        exact: Bytes of these tensors without compression.
        noise: S: the variance that they add to the gradient, times (2^bits - 1)^2.
    """

    elements: int = 0
    exact: int = 0
    noise: float = 0.0


@dataclass(slots=True)
class _Use:
    """The use of a packed tensor in the backward of one operator.

    Attributes:
        module: The module whose bits apply to the tensor.
        noise: Sum of the variances of the tensor's elements at one bit.
        energy: Sum of the squares of the tensor's elements.
        meets: Number of elements of the gradient of the operator's result with which each element
            is multiplied for the gradient of a parameter; 0 without a parameter.
        passed_on: Relative noise of the gradient that goes to earlier layers, divided by the
            relative noise of the tensor.
        gradient: Mean square of the gradient of the operator's result, summed over backward passes;
            None before the first one.
    """

    module: str
    noise: torch.Tensor
    energy: torch.Tensor
    meets: float
    passed_on: float
    gradient: torch.Tensor | None = None


class Meter:
    """Records the tensors that operators save in a forward pass, and the gradients of the backward.

    Args:
        group: Number of elements that share quantization levels.
        module: Returns the name of the module that is running; None if its bits are given.
    """

    def __init__(self, group: int, module: Callable[[], str | None]) -> None:
        self._group = group
        self._module = module
        self._owners: WeakKeyDictionary[Kept, str] = WeakKeyDictionary()
        self._sizes: dict[str, list[int]] = {}
        self._fixed: dict[int, tuple[int, int]] = {}
        self._uses: list[_Use] = []
        self._here = threading.local()

    @property
    def has_gradients(self) -> bool:
        """Whether a backward pass has reached a recorded operator."""
        return any(use.gradient is not None for use in self._uses)

    def saved(self, tensor: torch.Tensor, saved: Whole | Saved) -> None:
        """Record a tensor that autograd saves, and the form in which the store keeps it."""
        module = self._module()
        kept = saved.kept if isinstance(saved, Saved) else None
        if kept is None or kept.packed is None or module is None:
            if not is_parameter(tensor):
                self._note_fixed(tensor, None if kept is None else kept.packed)
            return
        if kept not in self._owners:
            self._owners[kept] = module
            size = self._sizes.setdefault(module, [0, 0])
            size[0] += tensor.numel()
            size[1] += tensor.nbytes
        operands = getattr(self._here, "operands", None)
        if operands is not None:
            operands.append((self._owners[kept], tensor.detach()))

    def _note_fixed(self, tensor: torch.Tensor, packed: Packed | None) -> None:
        """Record the bytes of a tensor with given bits; an exact tensor keeps its whole storage."""
        storage = tensor.untyped_storage()
        if packed is None:
            self._fixed[storage.data_ptr()] = storage.nbytes(), storage.nbytes()
        else:
            self._fixed[id(packed)] = tensor.nbytes, packed.nbytes

    @contextmanager
    def operator(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yield a list that receives the tensors which an operator saves inside this context."""
        operands: list[tuple[str, torch.Tensor]] = []
        self._here.operands = operands
        try:
            yield operands
        finally:
            self._here.operands = None

    def used(
        self,
        operands: list[tuple[str, torch.Tensor]],
        result: Any,
        role: Callable[[torch.Tensor], tuple[float, float]],
    ) -> None:
        """Record the saved tensors of an operator, and register a hook for the result's gradient.

        Args:
            operands: The list from `operator`.
            result: The result of the operator.
            role: Returns `_Use.meets` and `_Use.passed_on` for an operand.
        """
        if not operands or not isinstance(result, torch.Tensor) or not result.requires_grad:
            return
        uses = [_Use(module, *self._noise(each), *role(each)) for module, each in operands]
        self._uses += uses

        def note(gradient: torch.Tensor) -> None:
            square = gradient.detach().float().square().mean()
            for use in uses:
                use.gradient = square if use.gradient is None else use.gradient + square

        result.register_hook(note)

    def measured(self) -> dict[str, Measured]:
        """Return the measurement of each module; empty if a gradient was not finite."""
        seen = [use for use in self._uses if use.gradient is not None]
        columns = [
            torch.stack([value.double().cpu() for value in column]).tolist()
            for column in zip(*((use.noise, use.energy, use.gradient) for use in seen), strict=True)
        ]
        noise = dict.fromkeys(self._sizes, 0.0)
        before = 0.0  # energy of the parameter gradients of all earlier operators
        for use, of_noise, energy, gradient in zip(seen, *columns, strict=True):
            relative = of_noise / energy if energy else 0.0
            noise[use.module] += use.meets * gradient * of_noise
            noise[use.module] += use.passed_on * relative * before
            before += use.meets * gradient * energy
        if not all(map(_is_finite, noise.values())):
            return {}
        return {
            module: Measured(elements, exact, noise[module])
            for module, (elements, exact) in self._sizes.items()
        }

    def fixed(self) -> tuple[int, int]:
        """Return the bytes of the tensors with given bits: without compression, and as stored."""
        sizes = self._fixed.values()
        return sum(exact for exact, _ in sizes), sum(kept for _, kept in sizes)

    def _noise(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the elements' variances at one bit, and the sum of their squares."""
        flat = in_memory_order(tensor).float()
        energy = flat.square().sum()
        group = min(self._group, flat.numel())
        rows = flat[: flat.numel() // group * group].view(-1, group)
        span = rows.amax(1) - rows.amin(1)
        return span.square().mean() * flat.numel() / 6, energy


def _is_finite(number: float) -> bool:
    return number - number == 0
