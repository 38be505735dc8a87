"""The state of one optimizer's gradients, derived from the actions of a loop."""

from __future__ import annotations

import weakref
from dataclasses import field
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.tensors.local import local
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfstep.doctor.tape.tape import Multiplier

PROBES = 16


@dataclass(slots=True)
class Gradients:
    """The state of one optimizer's gradients, derived from the actions of the loop.

    Attributes:
        probes: A few of the optimizer's parameters, which represent all of them.
        parameters: `id` of each parameter of the optimizer.
        repeated: Whether the optimizer contains a parameter twice.
        holds: The losses whose gradients were accumulated: "scaled", "plain", or both.
        scales: The loss scales of the scaled losses among them.
        unscaled: Whether a scaler has unscaled the gradients, and no scaled ones were added since.
        by_another: Whether a scaler unscaled the gradients as gradients of another optimizer, which
            has the same parameters.
        onto_unscaled: Whether a backward has added to the gradients after they were unscaled.
        used: Whether an optimizer step has used the gradients.
        spent: Whether a step was requested, and the gradients were not written to since.
        stale: Whether a backward has added to the gradients after they were spent.
        examined: Whether the loop has called a function of torch with one of the gradients since
            the last backward, other than to write to the gradient.
        assigned: Whether the loop has put other tensors in the place of the gradients since the
            last backward.
        claimed: Whether, since the last backward that reached the gradients, the loop has called a
            method of a scaler or an optimizer that uses any optimizer's gradients.
        waiting: Number of steps, and number of skipped steps, since the last scheduler step.
        cleared: `id` of probes whose gradients were cleared one by one, until all are cleared.
        clearings: How often the gradients were cleared, by the loop or by an engine.
        seen: `id` and version of each probe's gradient at the last check.
        made: The gradients of the last backward; their `id` can pass to other tensors.
    """

    probes: list[torch.Tensor]
    parameters: frozenset[int] = frozenset()
    repeated: bool = False
    holds: set[str] = field(default_factory=set)
    scales: set[Multiplier] = field(default_factory=set)
    unscaled: bool = False
    by_another: bool = False
    onto_unscaled: bool = False
    used: bool = False
    spent: bool = False
    stale: bool = False
    examined: bool = False
    assigned: bool = False
    claimed: bool = False
    waiting: list[int] = field(default_factory=lambda: [0, 0])
    cleared: set[int] = field(default_factory=set)
    clearings: int = 0
    seen: tuple[tuple[int, int], ...] = ()
    made: tuple[weakref.ref[torch.Tensor], ...] = ()

    def look(self) -> tuple[tuple[int, int], ...]:
        """Return `id` and version of each probe's gradient; (0, 0) without a gradient."""
        return tuple(
            [
                (0, 0) if (grad := probe.grad) is None else (id(grad), grad._version)
                for probe in self.probes
            ]
        )

    def was_added_to(self, now: Sequence[tuple[int, int]]) -> bool:
        """Return whether a gradient has changed since the last check that was not cleared before.

        Args:
            now: What `look` returns now.
        """
        return bool(self.holds) and any(
            old[0] and old != new and id(probe) not in self.cleared
            for probe, old, new in zip(self.probes, self.seen, now, strict=False)
        )

    def shares(self, memories: set[int]) -> bool:
        """Return whether a probe's gradient is at one of these addresses."""
        return bool(memories) and any(
            memory(grad) in memories
            for each in self.probes
            if (grad := each.grad) is not None and grad.layout is torch.strided
        )

    def are_among(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether a probe's gradient, or a tensor in its memory, is one of the tensors."""
        known = {id(each) for made in self.made if (each := made()) is not None}
        if any(id(each) in known for each in tensors):
            return True
        return self.shares(memories(each for each in tensors if not each.requires_grad))

    def note_made(self) -> None:
        """Remember the gradients that a backward has just made."""
        self.made = tuple(
            [weakref.ref(grad) for probe in self.probes if (grad := probe.grad) is not None]
        )

    def take(self, scale: Multiplier | None) -> None:
        """Note that a backward has added gradients of a loss.

        Args:
            scale: The loss scale; None for a loss that was not scaled.
        """
        self.holds.add("plain" if scale is None else "scaled")
        if scale is not None:
            self.scales.add(scale)
            self.unscaled = False

    def forget(self) -> None:
        """Reset the state, because the gradients were cleared."""
        self.clearings += 1
        self.holds.clear()
        self.scales.clear()
        self.cleared.clear()
        self.unscaled = self.by_another = self.onto_unscaled = False
        self.used = self.spent = self.stale = self.examined = self.assigned = False
        self.seen = self.look()

    def state(self) -> str:
        """Return the state of the gradients: none, plain, scaled or unscaled."""
        if not any(identity for identity, _ in self.seen):
            return "none"
        if "scaled" not in self.holds:
            return "plain"
        return "unscaled" if self.unscaled else "scaled"

    @property
    def waits_for_scaler(self) -> bool:
        """Whether the gradients are scaled, and neither a scaler nor a step has used them yet."""
        return not self.claimed and self.state() == "scaled"

    def of_another(self, scaler: int) -> bool:
        """Return whether a scaler other than this one scaled the loss of some of the gradients."""
        return any(each.scaler != scaler for each in self.scales)


def memory(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, which a tensor and its `.data` share."""
    return int(local(tensor).data_ptr())


def memories(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the addresses of tensors, without those that have no memory of their own."""
    return {
        memory(each)
        for each in tensors
        if each.layout is torch.strided
        and not (each.is_nested or each.is_meta or is_functorch_tensor(each))
    }


def probes(followed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a few parameters that represent all parameters of an optimizer."""
    # If none requires gradients, they are fp32 copies to which the loop itself assigns gradients.
    parameters = [each for each in followed if each.requires_grad] or [*followed]
    stride = max(1, len(parameters) // PROBES)
    return parameters[::stride][:PROBES]
