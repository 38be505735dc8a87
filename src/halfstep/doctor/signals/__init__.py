"""The signals of the record of evidence, one file each.

They are collected while a program runs, and become plain frozen data at its end. `kinds` imports
every file of this package, so a new signal needs no registration.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Signal


@cache
def kinds() -> tuple[type[Signal], ...]:
    """Return the classes of all signals that own hooks or hear the events of a loop."""
    from halfstep.doctor.signals.signal import Signal

    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.iter_modules(__path__, f"{__name__}.")
    ]
    return tuple(
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Signal)
        and kind.__module__ == module.__name__
        and kind is not Signal
    )
