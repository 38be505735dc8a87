"""The units of a layer began with equal weights, and get equal gradients: they stay copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.signals.movement.units import EqualRows, Units
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 4  # steps
_PAIR = 2


def judge(evidence: Evidence) -> Finding | None:
    """Find hidden units that are equal after training, and products of two zeros."""
    ledger = evidence.of(ParameterLedger)
    long = {each.number for each in ledger.owners if each.steps >= _FEWEST}
    without = ledger.without_gradient()
    equal = [each for each in evidence.of(Units).equal if each.optimizer in long]
    copies = [each for each in equal if each.size and each.name not in without and each.feeds]
    moved = [each for each in copies if not each.split]
    if moved:
        return _copies(moved)
    zero = [each for each in equal if not each.size and each.name in without]
    if len(zero) >= _PAIR:
        return _zeros(zero)
    return _split(copies) if copies else None


def _copies(equal: list[EqualRows]) -> Finding:
    first = equal[0]
    names = ", ".join(each.name for each in equal[:3])
    return Finding(
        summary=f"all {first.rows} units of {first.module or first.name} are copies of one: their "
        "weights began equal, and get equal gradients in each step",
        facts=(
            f"{counted(len(equal), 'parameter')} with equal rows after training: {names}",
            "only random initial weights tell units apart",
        ),
        change=(
            f"+ # initialize {first.name} with random numbers, not with a constant:",
            "+ torch.nn.init.kaiming_uniform_(layer.weight, a=5**0.5)",
        ),
        confidence=LIKELY,
        module=first.module,
    )


def _split(equal: list[EqualRows]) -> Finding:
    first = equal[0]
    return Finding(
        summary=f"all {first.rows} units of {first.module or first.name} began as copies of one, "
        "and got equal gradients in the first steps: only rounding has told them apart since",
        facts=(
            (
                f"{counted(len(equal), 'parameter')} with equal rows before the first step: "
                f"{', '.join(each.name for each in equal[:3])}"
            ),
            "only random initial weights tell units apart",
        ),
        change=(f"+ # initialize each row of {first.name} with its own random numbers",),
        confidence=POSSIBLE,
        module=first.module,
    )


def _zeros(zero: list[EqualRows]) -> Finding:
    names = " and ".join(each.name for each in zero[:2])
    return Finding(
        summary=f"{names} are 0 and get gradients that are exactly 0: the gradient of each factor "
        "of a product is a multiple of the other factor, so both stay 0",
        facts=(f"{counted(len(zero), 'parameter')} of zeros after training",),
        change=(
            f"+ # initialize one of both with random numbers, such as {zero[0].name}:",
            "+ torch.nn.init.kaiming_uniform_(factor, a=5**0.5)",
        ),
        confidence=LIKELY,
        module=zero[0].module,
    )


RULE = Rule(
    code="UNITS_IDENTICAL",
    name="units that are copies of each other, or stay 0",
    rows=(11,),
    citations=(
        "wagonhelm/NaNmnist#2",
        "Guitaricet/relora#18",
        "Lightning-AI/litgpt#1229",
    ),
    needs=frozenset({"parameters", "units"}),
    judge=judge,
    explains=("NO_GRADIENTS",),
    harmless=True,
)
