"""Averages of weights and their updates, as the ledger of averages holds them."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import ClassVar

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass

_GAP = 4  # steps from one update to the next
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class AverageUpdate:
    """One measured update of an average.

    Attributes:
        step: Number of steps before it.
        kept: The factor of the average.
        added: The factor of the parameter.
        near: Whether the average was near to the parameter before it.
    """

    step: int
    kept: float
    added: float
    near: bool


@dataclass(frozen=True, slots=True)
class AverageLine:
    """The updates of averages by one line.

    Attributes:
        optimizer: Number of the optimizer that trains the parameters.
        updates: The measured updates in which both factors are known.
        still: The most updates of one average that has never changed, while the parameter differed.
        site: The line.
        loop: The innermost loop around it.
    """

    optimizer: int
    updates: tuple[AverageUpdate, ...]
    still: int
    site: Site | None
    loop: Site | None = None

    def is_within(self, steps: int) -> bool:
        """Return whether some updates were measured so few steps after others, or fewer."""
        known = sorted({each.step for each in self.updates})
        return sum(b - a <= steps for a, b in pairwise(known)) > 1

    def left(self, steps: int) -> float:
        """Return the share of an average that are the weights of its beginning.

        Args:
            steps: Number of steps of all optimizers.

        Returns:
            The share; 0 if it is unknown, or if the decay changes, because it has a plan then.
        """
        kept = [each.kept for each in self.updates]
        if not self.is_within(_GAP) or max(kept) - min(kept) > _SAME or not 0 < median(kept) < 1:
            return 0.0
        known = sorted({each.step for each in self.updates})
        gap = min(b - a for a, b in pairwise(known))
        return float(median(kept) ** ((steps - known[0]) / gap))


@dataclass(frozen=True, slots=True)
class AveragedModel:
    """A model whose parameters are averages, or one of the class `AveragedModel` of torch.

    Attributes:
        number: Number of the model.
        updates: How often torch's class has averaged; -1 for a model of another class.
        weighs_alike: Whether it is of torch's class, and averages all weights alike (SWA).
        stale: Names of norm layers with the running statistics of their construction, if those of a
            trained model have changed.
        norms: Number of its layers with running statistics.
        ran: Whether it has run in training mode, which computes its own statistics.
        site: The last line that evaluated it in evaluation mode; None without one.
        vectors: The lengths of the vectors of its spectral norms that are not 1, one for each norm.
    """

    number: int
    updates: int
    weighs_alike: bool
    stale: tuple[str, ...]
    norms: int
    ran: bool
    site: Site | None
    vectors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AverageLedger:
    """All lines that update averages, and all models that are averages."""

    signal: ClassVar[str] = "averaging"
    lines: tuple[AverageLine, ...] = ()
    models: tuple[AveragedModel, ...] = ()
