"""How much noise a gradient gets from rounding what each module saved, measured in one step.

After ActNN (Chen et al., ICML 2021, arXiv:2104.14129), section 4: the variance that a saved tensor
adds at b bits is S / (2^b - 1)^2. S is the sum over its groups of range^2 / 6 an element, times the
square of the gradient that it is multiplied with. Where that gives a parameter's gradient, it is
the variance of that. Where it is passed on, as by an activation function, it is noise in the
gradients of all layers before, taken to be of the same relative size in each.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from halfstep.techniques.activations.store import Saved, in_memory_order, is_parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.kernels.packing import Packed
    from halfstep.techniques.activations.store import Kept, Whole


@dataclass(frozen=True, slots=True)
class Measured:
    """What one module saves.

    Attributes:
        elements: Of its packed tensors.
        exact: Bytes of those tensors as they are.
        noise: S: what they add to the variance of the gradient, times (2^bits - 1)^2.
    """

    elements: int = 0
    exact: int = 0
    noise: float = 0.0


@dataclass(slots=True)
class _Use:
    """A packed tensor in one operator that needs it for its gradient.

    Attributes:
        module: Whose bits it is kept in.
        noise: Variance of its elements at one bit, summed.
        energy: Its squares, summed.
        meets: Elements of the operator's gradient that each is multiplied with for the gradient of
            a parameter; 0 where there is none.
        passed_on: Relative noise of the gradient that is passed on, over that of the tensor.
        gradient: Mean square of the operator's gradient, once there is one.
    """

    module: str
    noise: torch.Tensor
    energy: torch.Tensor
    meets: float
    passed_on: float
    gradient: torch.Tensor | None = None


class Meter:
    """Notes what operators save in a forward pass, and their gradients in its backward pass.

    Args:
        group: Elements that share their levels.
        module: Gives the module that runs, if its bits are to be chosen.
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
        """Whether a backward pass has been over what was noted."""
        return any(use.gradient is not None for use in self._uses)

    def saved(self, tensor: torch.Tensor, saved: Whole | Saved) -> None:
        """Note a tensor that is saved, and what it is kept as."""
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
        """Note the bytes of a tensor whose bits are given; whole, it keeps all of its storage."""
        storage = tensor.untyped_storage()
        if packed is None:
            self._fixed[storage.data_ptr()] = storage.nbytes(), storage.nbytes()
        else:
            self._fixed[id(packed)] = tensor.nbytes, packed.nbytes

    @contextmanager
    def operator(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Give what the operator that runs meanwhile saves."""
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
        """Note what an operator has saved, and wait for its gradient.

        Args:
            operands: From `operator`.
            result: What it returned.
            role: Gives for an operand what `_Use.meets` and `_Use.passed_on` say.
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
        """Return what was found of each module; empty if a gradient was not finite."""
        seen = [use for use in self._uses if use.gradient is not None]
        columns = [
            torch.stack([value.double().cpu() for value in column]).tolist()
            for column in zip(*((use.noise, use.energy, use.gradient) for use in seen), strict=True)
        ]
        noise = dict.fromkeys(self._sizes, 0.0)
        before = 0.0  # energy of the products that parameters' gradients are sums of, so far
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
        """Return the bytes of what has its bits already: as it was given, and as it is kept."""
        sizes = self._fixed.values()
        return sum(exact for exact, _ in sizes), sum(kept for _, kept in sizes)

    def _noise(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the variance of all elements at one bit, and the sum of their squares."""
        flat = in_memory_order(tensor).float()
        energy = flat.square().sum()
        group = min(self._group, flat.numel())
        rows = flat[: flat.numel() // group * group].view(-1, group)
        span = rows.amax(1) - rows.amin(1)
        return span.square().mean() * flat.numel() / 6, energy


def _is_finite(number: float) -> bool:
    return number - number == 0
