"""What the ledger of gradients holds: what became of each backward's contribution."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """Contributions that were made for something else, and that the steps of an optimizer used.

    Attributes:
        steps: Number of these steps.
        passes: Number of these contributions.
        user: Number of the optimizer whose steps they were made for; None for contributions that
            were made for the gradients of an input.
        site: The line of their backward.
        before: The line of the first backward of a step that was made for the optimizer itself.
    """

    steps: int
    passes: int
    user: int | None
    site: Site | None
    before: Site | None


@dataclass(frozen=True, slots=True)
class Early:
    """Steps that used only the last of several backward passes of one line.

    Attributes:
        steps: Number of these steps.
        passes: Number of the other passes in each of them: a call cleared their gradients, and no
            call had used them.
        zero: The line that cleared them, which also cleared before the last pass.
        step: The line of the steps.
    """

    steps: int
    passes: int
    zero: Site | None
    step: Site | None


@dataclass(frozen=True, slots=True)
class Contributions:
    """The contributions of the backward passes to the gradients of one optimizer.

    Attributes:
        number: Number of the optimizer.
        backwards: Number of backward passes that reached its gradients.
        used: Number of them whose contribution ended in a step.
        twice: Number of steps that used gradients of an earlier step again.
        lost: Number of backward passes whose contribution was cleared before any use.
        windows: Number of steps by the number of backward passes since the step before.
        mixed: Number of steps that used the backward passes of several lines.
        waiting: Number of backward passes since the last step or the last clearing.
        same_line: Whether these come from a line whose backward passes ended in steps before.
        finite: Whether the gradients at the end of the program are finite.
        since: The iteration of the last step.
        step: The line of the last step.
        backward: The line of the last backward.
        zero: The line that cleared the gradients last.
        foreign: Contributions that were made for something else.
        joint: Contributions that pass its parameters on the way to those of another optimizer, in
            steps with others that reach it alone.
        repeated: Number of steps that counted a loss several times.
        repeated_at: The line of a backward that counted a loss again.
        stacked: Number of backward passes in a closure that added to those of the closure's earlier
            runs in the same step.
        stacked_at: The line of such a backward.
        shared: Number of steps that used the contributions that a step of another optimizer had
            used for the same parameters, by the number of that optimizer.
        overwritten: Number of steps with gradients that the loop computed, after it had zeroed in
            place gradients that it had kept and not used.
        dropped: Number of incomplete windows that were cleared.
        unseen: Number of backward passes in these windows, if their batches were always the same
            ones, and no step used them.
        direct: Number of steps without a closure that used the gradients as backward passes had
            left them, or clipped.
        early: Those of them that used only the last of several passes, the most frequent ones
            first.
    """

    number: int
    backwards: int = 0
    used: int = 0
    twice: int = 0
    lost: int = 0
    windows: dict[int, int] = field(default_factory=dict)
    mixed: int = 0
    waiting: int = 0
    same_line: bool = False
    finite: bool = True
    since: int = -1
    step: Site | None = None
    backward: Site | None = None
    zero: Site | None = None
    foreign: tuple[Foreign, ...] = ()
    joint: tuple[Foreign, ...] = ()
    repeated: int = 0
    repeated_at: Site | None = None
    stacked: int = 0
    stacked_at: Site | None = None
    shared: dict[int, int] = field(default_factory=dict)
    overwritten: int = 0
    dropped: int = 0
    unseen: int = 0
    direct: int = 0
    early: tuple[Early, ...] = ()

    @property
    def usual(self) -> int:
        """The most frequent number of backward passes per step; 0 without a step."""
        return max(self.windows, key=lambda size: self.windows[size], default=0)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(self.windows.values())


@dataclass(frozen=True, slots=True)
class GradientLedger:
    """The ledger, for each optimizer whose gradients a backward has reached."""

    signal: ClassVar[str] = "contributions"
    optimizers: tuple[Contributions, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnStepLedger:
    """The steps of a loop that updates its weights itself, in a program without an optimizer.

    Attributes:
        steps: Number of steps by backward passes.
        stale: How often a backward pass added to a gradient that the weight had been updated with.
        site: The line of the last backward pass.
    """

    signal: ClassVar[str] = "own steps"
    steps: int = 0
    stale: int = 0
    site: Site | None = None
