"""`halfstep.watch(model, optimizer)`: doctor in a user's own loop."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any, Self

from halfstep.doctor.actions.hold_back import can_hold_back
from halfstep.doctor.report.diagnose import diagnose
from halfstep.doctor.report.show import print_diagnosis
from halfstep.doctor.watching.watch import Watch

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.verdict import Diagnosis


class Session:
    """Watches a loop until its `with` block ends, `diagnose()` is called, or the program exits.

    Args:
        watch: The watch, not yet started.
        quiet: Whether to print nothing at the end.
    """

    def __init__(self, watch: Watch, *, quiet: bool) -> None:
        self._watch = watch.start()
        self._quiet = quiet
        self._diagnosis: Diagnosis | None = None
        atexit.register(self.diagnose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._watch.note_ending(error)
        self.diagnose()

    def diagnose(self) -> Diagnosis:
        """Stop watching and return the diagnosis; also prints it, unless `quiet` is set."""
        if self._diagnosis is None:
            atexit.unregister(self.diagnose)
            self._diagnosis = diagnose(self._watch.close())
            if not self._quiet:
                print_diagnosis(self._diagnosis, sys.stderr)
                if self._watch.failure:
                    print(self._watch.failure, file=sys.stderr)  # noqa: T201
        return self._diagnosis

    @property
    def watch(self) -> Watch:
        """The watch that records the evidence."""
        return self._watch


def watch(
    model: nn.Module | list[nn.Module],
    optimizer: Optimizer | list[Optimizer],
    scaler: Any = None,
    *,
    quiet: bool = False,
    hold_back: bool = False,
) -> Session:
    """Watch a training loop in this thread and diagnose it.

    Args:
        model: The model or models that the loop trains.
        optimizer: The optimizer or optimizers that the loop steps.
        scaler: The `torch.amp.GradScaler`, if the loop has one.
        quiet: Whether to print nothing at the end.
        hold_back: Whether a direct call of `optimizer.step()`, without a scaler, is skipped if the
            loss or the gradients are non-finite. The parameters then keep their values. Needs
            fused optimizers, and parameters that are not sharded.

    Returns:
        The session. Use it in a `with` statement, or call its `diagnose()` after the loop.

    Raises:
        ValueError: If this process is already watched, or if `hold_back` is set and an optimizer
            is not fused or has sharded parameters.
    """
    optimizers = _listed(optimizer)
    for each in optimizers:
        if hold_back and not can_hold_back(each):
            kind = type(each).__name__
            raise ValueError(
                f"{kind}: hold_back=True needs fused optimizers and unsharded parameters; "
                f"write {kind}(..., fused=True)"
            )
    observer = Watch(hold_back=hold_back, waits=True)
    observer.know(_listed(model), optimizers, scaler)
    return Session(observer, quiet=quiet)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
