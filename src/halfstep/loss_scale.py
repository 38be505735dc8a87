"""The settings of a loss scale, as pure data: the value of one field of a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from halfstep.errors import refuse_unknown
from halfstep.formats import FORMATS


@dataclass(frozen=True, slots=True)
class LossScale:
    """Settings of the loss scale, which keeps small gradients from underflowing in fp16.

    Attributes:
        dynamic: Whether the scale grows and backs off. If False, the scale stays at `init`.
        init: The loss scale of the first step.
        growth_factor: Factor by which the scale grows after `growth_interval` finite steps.
        growth_interval: Number of consecutive finite steps before the scale grows.
        backoff_factor: Factor applied to the scale when a gradient is non-finite.
        floor: Smallest scale. If the scale is dynamic, non-finite gradients at this scale raise
            `LossScaleCollapse`.
        ceiling: Largest scale.
        collapse_after: Number of consecutive skipped steps after which `LossScaleCollapse` is
            raised.

    Raises:
        ValueError: If a number is out of range.
    """

    dynamic: bool = True
    init: float = 65536.0
    growth_factor: float = 2.0
    growth_interval: int = 2000
    backoff_factor: float = 0.5
    floor: float = 2.0**-10
    ceiling: float = 2.0**24
    collapse_after: int = 30

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "dynamic"):
            given = getattr(self, name)
            is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
            if not is_number:
                raise ValueError(f"loss_scale.{name} is {given!r}; allowed: a number, such as 1024")
        for name in ("growth_interval", "collapse_after"):
            given = getattr(self, name)
            if given != int(given):
                raise ValueError(f"loss_scale.{name} is {given!r}; allowed: a whole number")
            object.__setattr__(self, name, int(given))  # YAML reads 1e3 as a float
        fp32 = FORMATS["fp32"]
        checks = {
            "dynamic": (isinstance(self.dynamic, bool), "True or False"),
            "floor": (
                self.floor >= fp32.tiny,
                f"{fp32.tiny:.3g} or more, so that fp32 holds 1/floor",
            ),
            "ceiling": (self.ceiling <= fp32.max, f"{fp32.max:.3g} or less, which fp32 holds"),
            "init": (
                self.floor <= self.init <= self.ceiling,
                "floor <= init <= ceiling",
            ),
            "growth_factor": (1 < self.growth_factor < math.inf, "more than 1"),
            "growth_interval": (self.growth_interval >= 1, "1 or more"),
            "backoff_factor": (0 < self.backoff_factor < 1, "between 0 and 1"),
            "collapse_after": (self.collapse_after >= 1, "1 or more"),
        }
        for name, (holds, allowed) in checks.items():
            if not holds:
                given = getattr(self, name)
                msg = f"loss_scale.{name} is {given!r}; allowed: {allowed}"
                if name == "init":
                    msg += f" (floor={self.floor!r}, ceiling={self.ceiling!r})"
                raise ValueError(msg)

    @classmethod
    def parse(cls, value: object) -> LossScale:
        """Parse a loss scale.

        Args:
            value: "dynamic", a number or numeric string for a static scale, a mapping of this
                class's fields, or a `LossScale`.

        Raises:
            ValueError: If `value` is none of these. The message says what is allowed.
        """
        if isinstance(value, cls):
            return value
        if value == "dynamic":
            return cls()
        if isinstance(value, Mapping):
            refuse_unknown("loss_scale field", value, [field.name for field in fields(cls)])
            return cls(**value)
        try:
            number = float(value)  # type: ignore[arg-type]  # anything else is refused below
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not 0 < number < math.inf:
            raise ValueError(
                f"loss_scale is {value!r}; allowed: 'dynamic', a positive number for a static "
                "scale, or a mapping such as {init: 1024, growth_interval: 100}"
            )
        return cls(
            dynamic=False,
            init=number,
            floor=min(LossScale().floor, number),
            ceiling=max(LossScale().ceiling, number),
        )

    def __str__(self) -> str:
        return "dynamic" if self.dynamic else f"static {self.init:g}"
