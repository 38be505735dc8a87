"""What the ledgers show that does no certain harm: notes, where rules report causes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.averages import AverageLedger
from halfstep.doctor.record.contributions import Contributions, GradientLedger
from halfstep.doctor.replay.lags import Lags
from halfstep.doctor.signals.ledgers.parameters import NEVER, STILL, ZERO, Owner, ParameterLedger
from halfstep.doctor.signals.ledgers.switches import ModeLedger, ModelModes
from halfstep.doctor.signals.ledgers.writes import WriteLedger
from halfstep.doctor.signals.program.names import UserNames
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.record import Evidence, OptimizerFacts

_FEWEST = 4  # steps; fewer have no usual number of backward passes
_ROUTINE = 0.5  # of the steps; a write in more of them is a part of the step
_KEPT = 2  # writes; a single one may begin another phase of the training
_WORTH = 1e-3  # of the largest gradient; a bias before a norm has a smaller one
_LONG = 16  # steps
_MOST = 0.5  # of an average, of steps
_FATES = {
    (NEVER, ""): "never had a gradient: the loss does not depend on them, or they run under "
    "no_grad() or before a detach()",
    (ZERO, ""): "have gradients that are exactly 0",
    (STILL, "rate"): "have a learning rate of 0",
    (STILL, "lost rate"): "have a learning rate of 0",
    (STILL, "eps"): "have the values of before: eps is far above their gradients",
    (STILL, "rounding"): "have the values of before: their updates are rounded away",
}
_PARTS = 2  # backward passes per step, from which on a loop accumulates


def imbalances(evidence: Evidence) -> Iterator[str]:
    """Yield a note on each imbalance that may be intended."""
    optimizers = evidence.static.optimizers
    for account in evidence.of(GradientLedger).optimizers:
        kind = optimizers[account.number].kind if account.number < len(optimizers) else "optimizer"
        if account.steps >= _FEWEST and account.usual >= _PARTS and not account.mixed:
            yield from _of_windows(account, kind)
        yield from _of_attacks(account, kind)
    ledger = evidence.of(ParameterLedger)
    for owner in ledger.owners:
        kind = optimizers[owner.number].kind if owner.number < len(optimizers) else "optimizer"
        if owner.steps >= _FEWEST:
            yield from _of_parts(ledger, owner, kind)
    for each in ledger.unowned:
        if evidence.static.may_copy(each.count):
            continue
        yield (
            f"{counted(each.count, 'parameter')} of {each.kind} with gradients "
            f"{'is' if each.count == 1 else 'are'} in no optimizer: {', '.join(each.names[:3])}"
        )
    yield from _of_averages(evidence)
    yield from _of_writes(evidence.of(WriteLedger), optimizers)
    names = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        if evidence.static.models[model.number].optimizers:
            yield from _of_modes(model, names.title(model.number, model.kind))


def _of_parts(ledger: ParameterLedger, owner: Owner, kind: str) -> Iterator[str]:
    """Yield notes on parameters of an optimizer that do not train."""
    for (fate, why), text in _FATES.items():
        parts = [
            each
            for each in ledger.parts
            if (each.optimizer, each.fate, each.why) == (owner.number, fate, why)
            and (fate != STILL or each.size >= _WORTH)
        ]
        count = sum(each.count for each in parts)
        if 0 < count < owner.parameters:
            yield f"{count} of {counted(owner.parameters, 'parameter')} of {kind} {text}"


def _of_modes(model: ModelModes, title: str) -> Iterator[str]:
    """Yield notes on layers that were trained in evaluation mode, in all or the last calls."""
    for what, layers in (
        ("dropout is off", [each for each in model.layers if each.drops]),
        (
            "with the running statistics of their construction",
            [each for each in model.layers if each.fresh],
        ),
    ):
        off = [each for each in layers if each.evaluating >= _FEWEST and not each.frozen]
        never = [each for each in off if not each.training]
        left = [each for each in off if each.left]
        for mine, when in ((never, "every training call"), (left, "the last training calls")):
            if mine:
                names = ", ".join(each.name or each.kind for each in mine[:3])
                yield f"{names} of {title} ran in evaluation mode in {when}: {what}"


def _of_writes(ledger: WriteLedger, optimizers: Sequence[OptimizerFacts]) -> Iterator[str]:
    """Yield notes on writes of parameters that the next steps have kept."""
    for each in ledger.lines:
        steps = ledger.steps.get(each.optimizer, 0)
        if (
            each.kept >= _KEPT
            and each.count < _ROUTINE * steps
            and each.optimizer < len(optimizers)
        ):
            where = f" in line {each.site.line}" if each.site else ""
            what = f"{each.by}{where}" if each.by else "other code"
            yield (
                f"{what} writes {counted(each.most, 'parameter')} of "
                f"{optimizers[each.optimizer].kind} between steps, "
                f"{counted(each.count, 'time')} in {counted(ledger.steps[each.optimizer], 'step')}"
            )


def _of_attacks(account: Contributions, kind: str) -> Iterator[str]:
    """Yield notes on backward passes for the gradients of an input that steps used, too."""
    for each in account.foreign:
        if each.user is None and each.steps >= _FEWEST:
            yield (
                f"{counted(each.steps, 'step')} of {kind} also used the gradients of the "
                f"backward() at {each.site}, which was made for the gradients of an input: right "
                "if its loss belongs to the training, else clear them before the next backward()"
            )


def _of_averages(evidence: Evidence) -> Iterator[str]:
    """Yield a note on each average that still consists of the weights of its beginning."""
    lags = evidence.of(Lags)
    if lags.found or lags.steps < _LONG:  # A rule judges those that are evaluated.
        return
    for line in evidence.of(AverageLedger).lines:
        left = line.left(lags.steps)
        if left > _MOST:
            yield (
                f"the average of weights that {line.site} updates keeps "
                f"{median(each.kept for each in line.updates):.5g} of itself in each update: after "
                f"{counted(lags.steps, 'step')}, {left:.0%} of it are the weights of its beginning"
            )


def _of_windows(account: Contributions, kind: str) -> Iterator[str]:
    """Yield notes on accumulation windows of another size than the usual one."""
    if account.windows[account.usual] < _MOST * account.steps:
        return  # The loop has no usual size.
    usual = f"usual steps use {account.usual}"
    for size, count in sorted(account.windows.items()):
        steps = f"{counted(count, 'step')} of {kind} used {_passes(size)}, and {usual}"
        if size > account.usual:
            yield f"{steps}: a window that an epoch leaves open goes on in the next epoch"
        elif 0 < size < account.usual:
            yield f"{steps}: the loss of a short window should be divided by its own size"
    unused = account.lost + account.waiting
    if 0 < unused < account.backwards / account.usual:
        yield (
            f"no step of {kind} used the gradients of {_passes(unused)} of {account.backwards}, "
            f"and {usual}"
        )


def _passes(count: int) -> str:
    return counted(count, "backward pass", "backward passes")
