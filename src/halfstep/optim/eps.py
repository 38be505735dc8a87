"""Finds an optimizer's eps that is zero in the format in which the optimizer computes.

The eps keeps the divisor of an update above zero. If it rounds to zero in fp16, so do the squares
of small gradients, and the update becomes 0 / 0 or x / 0. The engine, doctor and advise all ask
this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.formats import FORMATS, format_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

LARGE_ENOUGH = "1e-4"
"""An eps for fp16, as source code."""


class ZeroEps(NamedTuple):
    """An eps, and the name of the format in which it is zero."""

    eps: float
    form: str

    def __str__(self) -> str:
        return f"eps = {self.eps:g} is 0 in {self.form}"


def zero_eps(settings: Mapping[str, object], form: str) -> ZeroEps | None:
    """Return the eps of a parameter group, if it is zero in the format of the updates.

    Args:
        settings: The settings of the group, and, if all arithmetic is in fp32 whatever the format
            of the parameters, a true "computes_in_fp32". Fused kernels of torch are such a case.
        form: Name of the format of the parameters.
    """
    eps = settings.get("eps")
    if form not in FORMATS or not isinstance(eps, float):  # Adafactor has a pair
        return None
    if settings.get("fused") or settings.get("computes_in_fp32"):
        return None
    lost = FORMATS[form].rounds_to_zero
    sum_of_squares = settings.get("initial_accumulator_value")  # Adagrad: never falls below it
    if isinstance(sum_of_squares, float | int) and sum_of_squares > 0 and not lost(sum_of_squares):
        return None
    return ZeroEps(eps, form) if lost(eps) else None


def zero_eps_of(optimizer: Optimizer, form: str | None = None) -> ZeroEps | None:
    """Return the first eps of an optimizer that is zero in the format of its updates.

    Args:
        optimizer: The optimizer.
        form: The format of its updates under a recipe that is not applied yet; None for the formats
            that its parameters have now.
    """
    wide = computes_in_fp32(optimizer)
    for group in optimizer.param_groups:
        settings: dict[str, Any] = {**group, "computes_in_fp32": wide}
        trained = {each.dtype for each in group["params"] if each.requires_grad}
        forms = [form] if form else sorted(map(format_name, trained))
        for each in forms:
            if found := zero_eps(settings, each):
                return found
    return None


def computes_in_fp32(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's class computes in fp32, also for half parameters."""
    inner = getattr(optimizer, "optim", optimizer)  # LARC and ZeRO step an optimizer inside
    return bool(getattr(inner, "computes_in_fp32", False))
