"""The state of one optimizer's gradients, derived from the order of a loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.doctor.tape.tape import Multiplier

PROBES = 16


@dataclass(slots=True)
class Gradients:
    """The state of one optimizer's gradients, derived from the order of the loop.

    Attributes:
        probes: A few of its parameters, which represent all.
        parameters: Identities of all parameters.
        repeated: Whether it contains a parameter twice.
        holds: The kinds of accumulated gradients: "scaled", "plain", or both.
        scales: The loss scales that multiply them.
        unscaled: Whether a scaler has divided them, and nothing scaled was added since.
        by_another: Whether a scaler divided them as gradients of another optimizer.
        onto_unscaled: Whether a backward has added to them after they were divided.
        used: Whether a step has used them.
        spent: Whether a step was requested, and they have not been written since.
        stale: Whether a backward has added to them after they were spent.
        waiting: Steps, and steps skipped, since a scheduler moved.
        cleared: Probes with gradients that were cleared one by one, until all are cleared.
        seen: Identity and version of the probes' gradients at the last check.
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
    waiting: list[int] = field(default_factory=lambda: [0, 0])
    cleared: set[int] = field(default_factory=set)
    seen: tuple[tuple[int, int], ...] = ()

    def look(self) -> tuple[tuple[int, int], ...]:
        """Return identity and version of the probes' gradients; 0 without a gradient."""
        return tuple(
            [
                (0, 0) if (grad := probe.grad) is None else (id(grad), grad._version)
                for probe in self.probes
            ]
        )

    def forget(self, *, unseen: bool = False) -> None:
        """Mark the gradients as cleared: current ones are new."""
        self.holds.clear()
        self.scales.clear()
        self.cleared.clear()
        self.unscaled = self.by_another = self.onto_unscaled = False
        self.used = self.spent = self.stale = False
        self.seen = ((0, 0),) * len(self.probes) if unseen else self.look()

    def expect_more(self) -> None:
        """Expect the next backward to add to the gradients."""
        self.seen = tuple([(each, version - 1) for each, version in self.look()])

    def state(self) -> str:
        """Return the state of the gradients: none, plain, scaled or unscaled."""
        if not any(identity for identity, _ in self.seen):
            return "none"
        if "scaled" not in self.holds:
            return "plain"
        return "unscaled" if self.unscaled else "scaled"

    def of_another(self, scaler: int) -> bool:
        """Return whether another scaler multiplied some of the gradients."""
        return any(each.scaler != scaler for each in self.scales)


def memory(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, which a tensor and its `.data` share."""
    return int(local(tensor).data_ptr())


def probes(followed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a few parameters that represent all parameters of an optimizer."""
    # The loop assigns gradients to its own fp32 copies, which need not require them.
    parameters = [each for each in followed if each.requires_grad] or [*followed]
    stride = max(1, len(parameters) // PROBES)
    return parameters[::stride][:PROBES]
