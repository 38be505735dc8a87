"""`halfstep.watch(model, optimizer)`: doctor in one's own loop."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any, Self

from halfstep.doctor.report.diagnose import diagnose
from halfstep.doctor.report.show import print_diagnosis
from halfstep.doctor.watching.hold_back import can_hold_back
from halfstep.doctor.watching.watch import Watch

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.verdict import Diagnosis


class Session:
    """A watch over a loop; ends with its `with` block, with `diagnose`, or with the program.

    Args:
        watch: It, not yet started.
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
        """Stop watching, and return what is wrong; prints it, unless told to be quiet."""
        if self._diagnosis is None:
            atexit.unregister(self.diagnose)
            self._diagnosis = diagnose(self._watch.close())
            if not self._quiet:
                print_diagnosis(self._diagnosis, sys.stderr)
        return self._diagnosis

    @property
    def watch(self) -> Watch:
        """What observes."""
        return self._watch


def watch(
    model: nn.Module | list[nn.Module],
    optimizer: Optimizer | list[Optimizer],
    scaler: Any = None,
    *,
    quiet: bool = False,
    hold_back: bool = False,
) -> Session:
    """Watch a training loop in this thread.

    Args:
        model: What is trained; several are fine.
        optimizer: What steps; several are fine.
        scaler: The `torch.amp.GradScaler`, if there is one.
        quiet: Whether to print nothing at the end.
        hold_back: Whether optimizers are to skip steps whose loss or gradients are not finite, as
            under a scaler, so that the parameters stay those of the bad step; for fused ones.

    Returns:
        The session: use it in a `with`, or call its `diagnose()` after the loop.

    Raises:
        ValueError: If this process is watched already, or to hold steps back of an optimizer that
            is not fused.
    """
    optimizers = _listed(optimizer)
    for each in optimizers:
        if hold_back and not can_hold_back(each):
            kind = type(each).__name__
            raise ValueError(
                f"hold_back=True needs fused optimizers of parameters that are not sharded, "
                f"not this {kind}; write {kind}(..., fused=True)"
            )
    observer = Watch(hold_back=hold_back)
    observer.know(_listed(model), optimizers, scaler)
    return Session(observer, quiet=quiet)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
