"""What the gradients of one optimizer hold, as far as the order of a loop tells."""

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
    """What the gradients of one optimizer hold, as far as the loop's order tells.

    Attributes:
        probes: A few of its parameters, which stand for all.
        parameters: Identities of all of them.
        repeated: Whether one of them is in it twice.
        holds: What has been accumulated: "scaled", "plain", or both.
        scales: The values of loss scales in them.
        unscaled: Whether a scaler has divided them, and nothing scaled was added since.
        by_another: Whether it divided them as the gradients of another optimizer.
        onto_unscaled: Whether a backward has added to them after they were divided.
        used: Whether a step has been made with them.
        spent: Whether a step was asked for, and nothing was written to them since.
        stale: Whether a backward has added to them after they were spent.
        waiting: Steps, and steps skipped, since a scheduler moved.
        cleared: Probes whose gradients were cleared one by one, as long as not all are.
        seen: Identity and version of the probes' gradients when last looked at.
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
        """Return identity and version of the probes' gradients; 0 where there is none."""
        return tuple(
            [
                (0, 0) if (grad := probe.grad) is None else (id(grad), grad._version)
                for probe in self.probes
            ]
        )

    def forget(self, *, unseen: bool = False) -> None:
        """Take them as cleared: all that there is is new, or even unseen until now."""
        self.holds.clear()
        self.scales.clear()
        self.cleared.clear()
        self.unscaled = self.by_another = self.onto_unscaled = False
        self.used = self.spent = self.stale = False
        self.seen = ((0, 0),) * len(self.probes) if unseen else self.look()

    def expect_more(self) -> None:
        """Take them as what the next backward has added to."""
        self.seen = tuple([(each, version - 1) for each, version in self.look()])

    def state(self) -> str:
        """Return what the gradients are: none, plain, scaled or unscaled."""
        if not any(identity for identity, _ in self.seen):
            return "none"
        if "scaled" not in self.holds:
            return "plain"
        return "unscaled" if self.unscaled else "scaled"

    def of_another(self, scaler: int) -> bool:
        """Return whether another scaler than this one multiplied some of them."""
        return any(each.scaler != scaler for each in self.scales)


def memory(tensor: torch.Tensor) -> int:
    """Return where a tensor's numbers lie: what a tensor and its `.data` have in common."""
    return int(local(tensor).data_ptr())


def probes(followed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a few parameters that stand for all of an optimizer's."""
    # Copies that a loop keeps in fp32 are given their gradients, and need not ask for them.
    parameters = [each for each in followed if each.requires_grad] or [*followed]
    stride = max(1, len(parameters) // PROBES)
    return parameters[::stride][:PROBES]
