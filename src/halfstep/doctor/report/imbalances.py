"""What the ledgers show that does no certain harm: notes, where rules report causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.contributions import Contributions, GradientLedger
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record import Evidence

_FEWEST = 4  # steps; fewer have no usual number of backward passes
_PARTS = 2  # backward passes per step, from which on a loop accumulates


def imbalances(evidence: Evidence) -> Iterator[str]:
    """Yield a note on each imbalance that may be intended."""
    optimizers = evidence.static.optimizers
    for account in evidence.of(GradientLedger).optimizers:
        kind = optimizers[account.number].kind if account.number < len(optimizers) else "optimizer"
        if sum(account.windows.values()) >= _FEWEST and account.usual >= _PARTS:
            yield from _of_windows(account, kind)
    for optimizer in optimizers:
        owned = sum(optimizer.formats.values())
        if optimizer.steps >= _FEWEST and 0 < optimizer.without_gradient < owned:
            yield (
                f"{optimizer.without_gradient} of {counted(owned, 'parameter')} of "
                f"{optimizer.kind} never had a gradient: the loss does not depend on them, or they "
                "run under no_grad() or before a detach()"
            )


def _of_windows(account: Contributions, kind: str) -> Iterator[str]:
    """Yield notes on accumulation windows of another size than the usual one."""
    usual = f"usual steps use {account.usual}"
    for size, count in sorted(account.windows.items()):
        steps = f"{counted(count, 'step')} of {kind} used {_passes(size)}, and {usual}"
        if size > account.usual:
            yield f"{steps}: a window that an epoch leaves open goes on in the next epoch"
        elif 0 < size < account.usual:
            yield f"{steps}: the loss of a short window should be divided by its own size"
    unused = account.lost + account.waiting
    if 0 < unused < account.backwards / account.usual:
        yield f"no step of {kind} used the gradients of {_passes(unused)}, and {usual}"


def _passes(count: int) -> str:
    return counted(count, "backward pass", "backward passes")
