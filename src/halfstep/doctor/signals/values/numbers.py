"""Records the numbers of each step: loss, gradient norm, loss scale and learning rate.

On an accelerator, the norm of all gradients is computed in one fused pass. It is copied to the host
without waiting, and read at the next step, unless the caller needs it at once.

On a CPU, numbers are read at once, but a pass over all gradients takes about 2% of a step. So after
`FIRST` steps without problems, only a sample of the gradients is checked (`finite.py`). Their norm
is then computed in every `EVERY`-th step, and whenever the sample is not finite.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import Numbers, StepNumbers
from halfstep.doctor.signals.state.finite import sample_is_finite
from halfstep.doctor.tensors.local import local
from halfstep.doctor.tensors.summary import norm_dtype
from halfstep.kernels.accelerators import recorded_event
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FIRST = 64
LATEST = 256
EVERY = 8
_MISSING = -(2.0**127)  # No norm is negative, and no loss has this magnitude.
_HOST = torch.device("cpu")


@dataclass(slots=True)
class Reading:
    """Numbers of a step, which may not be on the host yet.

    Attributes:
        iteration: Number of the iteration, from 0.
        optimizer: Number of the optimizer.
        learning_rate: Learning rate of the optimizer's first group.
        skipped: Whether the step is already known to be skipped.
        checked: Whether found_inf is the engine's check of gradients without a loss scale.
        values: Loss, gradient norm, loss scale and found_inf; `_MISSING` for an absent one.
        arrived: The `torch.Event` of the copy of `values` to the host; None without a copy.
        is_late: Whether the numbers are read after the step.
    """

    iteration: int
    optimizer: int
    learning_rate: float
    skipped: bool
    checked: bool = False
    values: torch.Tensor | list[float] = field(default_factory=list)
    arrived: Any = None
    is_late: bool = False


class Series:
    """Collects the numbers of all steps.

    Attributes:
        checked: Whether found_inf of the next step is the engine's check of gradients without a
            loss scale; the owner of the series sets it.
        finite: Whether the gradients of the next step are known to be finite; the owner of the
            series sets it.
        troubles: Number of steps that were skipped or not finite.
        bad_owners: See `Numbers`; the owner of the series sets it.
        spoiled: See `Numbers`; the owner of the series sets it.

    Args:
        on_bad: Called with each step that is skipped, or whose loss or gradient norm is not finite,
            and with whether it is called after that step.
        whole: Whether to check all gradients of each step, not only a sample.
    """

    def __init__(self, on_bad: Callable[[StepNumbers, bool], None], *, whole: bool = False) -> None:
        self._on_bad = on_bad
        self._whole = whole
        self._taken: Counter[int] = Counter()
        self._troubled: Counter[int] = Counter()
        self._waiting: deque[Reading] = deque()
        self._first: list[StepNumbers] = []
        self._latest: deque[StepNumbers] = deque(maxlen=LATEST)
        self._skips = self._run = self._longest = 0
        self._smallest: float | None = None
        self._first_bad: StepNumbers | None = None
        self._before_bad: tuple[StepNumbers, ...] = ()
        self.bad_owners: tuple[int, ...] = ()
        self.spoiled = self.checked = self.finite = False
        self.troubles = 0

    def take(
        self,
        iteration: int,
        optimizer: int,
        *,
        learning_rate: float,
        loss: torch.Tensor | None,
        gradients: list[torch.Tensor] | None,
        norm: torch.Tensor | None = None,
        scale: torch.Tensor | None,
        skipped: bool,
        found_inf: torch.Tensor | None = None,
        at_once: bool = False,
    ) -> list[torch.Tensor]:
        """Record the numbers of a step; on an accelerator, they are read at the next step.

        Args:
            iteration: Number of the iteration, from 0.
            optimizer: Number of the optimizer.
            learning_rate: Learning rate of the optimizer's first group.
            loss: The tensor that backward was called on, without its loss scale.
            gradients: The optimizer's gradients; None for a skipped step.
            norm: Norm of the gradients, if it is already known.
            scale: The loss scale of the step; None without one.
            skipped: Whether the step is already known to be skipped.
            found_inf: Scalar, nonzero if the optimizer skips the step on the device.
            at_once: Whether to wait for an accelerator, and read the numbers now.

        Returns:
            The loss and the gradient norm as tensors on the device, without those that are None.
        """
        self.settle()
        known = (*(gradients or ())[:1], norm, loss, scale)
        device = next((each.device for each in known if each is not None), _HOST)
        with torch.no_grad():
            if norm is None and gradients and self._goes_through(gradients, optimizer, device):
                norm = gradient_norm(gradients)
            reading = Reading(iteration, optimizer, learning_rate, skipped, self.checked)
            self._send(reading, (loss, norm, scale, found_inf), device, at_once=at_once)
        return [each for each in (loss, norm) if each is not None]

    def _note_scale(self, scale: float | None) -> None:
        if scale is not None and (self._smallest is None or scale < self._smallest):
            self._smallest = scale

    def _goes_through(
        self, gradients: list[torch.Tensor], optimizer: int, device: torch.device
    ) -> bool:
        """Return whether the norm of all gradients is needed, because a sample does not suffice."""
        number = self._taken[optimizer]
        self._taken[optimizer] += 1
        if runs_behind(device) or self._whole or number % EVERY == 0:
            return True
        calm = number - self._troubled[optimizer]
        return calm < FIRST or not (self.finite or sample_is_finite(gradients, number))

    def _send(
        self,
        reading: Reading,
        values: Sequence[torch.Tensor | None],
        device: torch.device,
        *,
        at_once: bool,
    ) -> None:
        """Read the numbers of a step, or start their copy to the host."""
        if not runs_behind(device):
            reading.values = [_MISSING if each is None else each.item() for each in values]
            self._read(reading)
            return
        on_device = torch.stack([_scalar(each, device) for each in values])
        if at_once:
            reading.values = on_device.tolist()
            self._read(reading)
            return
        reading.is_late = True
        reading.values = on_device.to("cpu", non_blocking=True)
        reading.arrived = recorded_event(device)
        self._waiting.append(reading)

    def settle(self) -> None:
        """Read the numbers that were sent to the host in earlier steps."""
        while self._waiting:
            reading = self._waiting.popleft()
            if reading.arrived is not None:
                reading.arrived.synchronize()
            self._read(reading)

    def _read(self, reading: Reading) -> None:
        values = reading.values
        loss, norm, scale, found_inf = [
            None if value == _MISSING else value
            for value in (values if isinstance(values, list) else values.tolist())
        ]
        skipped = reading.skipped or bool(found_inf)
        if skipped:
            # A step that a loss scale makes bad is normal. Without one, its gradients are bad.
            norm = math.nan if reading.checked else None
        step = StepNumbers(
            iteration=reading.iteration,
            optimizer=reading.optimizer,
            loss=loss,
            gradient_norm=norm,
            scale=scale,
            skipped=skipped,
            learning_rate=reading.learning_rate,
        )
        if self._first_bad is None and not is_good(step):
            self._first_bad, self._before_bad = step, self._last_updates()
        if len(self._first) < FIRST:
            self._first.append(step)
        else:
            self._latest.append(step)
        self._note_scale(step.scale)
        self._run = self._run + 1 if skipped else 0
        self._skips += skipped
        self._longest = max(self._longest, self._run)
        if skipped or not is_good(step):
            self.troubles += 1
            self._troubled[reading.optimizer] = self._taken[reading.optimizer]
            self._on_bad(step, reading.is_late)

    def _last_updates(self) -> tuple[StepNumbers, ...]:
        """Return for each optimizer the latest step in which it changed its parameters."""
        steps = chain(self._first, self._latest)
        latest = {each.optimizer: each for each in steps if not each.skipped}
        return tuple(latest.values())

    @property
    def first_bad(self) -> StepNumbers | None:
        """The first step, among those read so far, with a non-finite loss or gradient."""
        return self._first_bad

    @property
    def state(self) -> list[str]:
        """The results of the steps that were read, as text; empty before the first."""
        said = [f"{self._skips} skipped"] if self._skips else []
        if self._first_bad is not None:
            return [*said, f"inf or NaN first in step {self._first_bad.iteration}"]
        return said or ["no inf or NaN so far"] if self._first else []

    @property
    def run_of_skips(self) -> int:
        """Number of consecutive skipped steps up to now."""
        return self._run

    def freeze(self) -> Numbers:
        """Read the numbers that are still being copied to the host, and return all numbers."""
        self.settle()
        return Numbers(
            steps=(*self._first, *self._latest),
            skips=self._skips,
            longest_run_of_skips=self._longest,
            smallest_scale=self._smallest,
            first_bad=self._first_bad,
            before_bad=self._before_bad,
            bad_owners=self.bad_owners,
            spoiled=self.spoiled,
        )


def runs_behind(device: torch.device) -> bool:
    """Return whether a device works asynchronously, so that reading a value waits for it."""
    return device.type != "cpu"


def is_good(step: StepNumbers) -> bool:
    """Return whether the loss and the gradient norm of a step are finite."""
    return all(
        value is None or abs(value) < float("inf") for value in (step.loss, step.gradient_norm)
    )


def _scalar(value: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    if value is None:
        return torch.full((), _MISSING, dtype=torch.float32, device=device)
    return value.detach().to(device, torch.float32, non_blocking=True).reshape(())


def gradient_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of gradients, in fp32 or wider, on the device of the first one.

    In fp16, the norm of 1000 elements of 6e4 would be inf although each element is finite.
    """
    dense = [each.coalesce().values() if each.is_sparse else each for each in gradients]
    groups: dict[tuple[torch.device, torch.dtype | None], list[torch.Tensor]] = {}
    for each in dense:
        groups.setdefault((each.device, norm_dtype(each)), []).append(local(each))
    norms = [
        torch.linalg.vector_norm(torch.stack(torch._foreach_norm(group, 2, dtype)))
        for (_, dtype), group in groups.items()
    ]
    first, widest = norms[0].device, max((each.dtype for each in norms), key=lambda t: t.itemsize)
    total: torch.Tensor = torch.linalg.vector_norm(
        torch.stack([each.to(first, widest) for each in norms])
    )
    return total
