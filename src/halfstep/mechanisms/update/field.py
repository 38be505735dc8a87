"""Field `update`: how weight updates of bf16 parameters are rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.mechanisms.part import Use, Whole
    from halfstep.mechanisms.technique import Technique


class Update(Part):
    """Keeps small weight updates that rounding to nearest would lose."""

    field = "update"
    place = 110
    purpose = "How updates of bf16 parameters are rounded; to nearest if not set."
    allowed = {
        "stochastic": "randomly up or down, so that the expected value is exact",
        "kahan": "to nearest, with a compensation term that keeps the rounding error",
    }

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse parameters that are not bf16, and master weights, which this field replaces."""
        params = whole.get("params")
        if params != "bf16":
            said = repr(params) if params else "not set"
            return (
                f"update={self.value!r} rounds into bf16 parameters, but params is {said}; "
                "write params='bf16', or master_weights=True for fp16"
            )
        if whole.get("master_weights"):
            return (
                f"update={self.value!r} replaces fp32 master weights, but master_weights is "
                f"{whole.get('master_weights')!r}; leave one of them out"
            )
        return None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Run the optimizer in fp32 and round its results."""
        from halfstep.mechanisms.update.technique import RoundedUpdate

        del whole
        yield RoundedUpdate(self.value, seed=seed)

    def optimizer_format(self) -> str | None:
        """Return fp32: the optimizer steps fp32 copies of a few parameters at a time."""
        return "fp32"

    def keeps_small_updates(self) -> bool:
        """Return True: small updates take effect, on average (stochastic) or later (Kahan)."""
        return True

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse ZeRO: it steps an internal optimizer, whose parameters cannot be replaced."""
        del whole
        if use == "zero_optimizer":
            return "the optimizer that it steps inside would leave out how updates are rounded"
        return None
