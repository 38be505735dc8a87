"""Makes warnings name the same line as without doctor.

A warning names the caller of a function by its distance on the call stack, to which doctor's
wrappers add frames. A warning that would name a line of doctor is issued again for the program's
line that called doctor, so filters and "once per line" apply to the program's line. Warnings during
a replay are not shown, because the program has already shown them.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import overrides

from halfstep.doctor.internals import calling_frame
from halfstep.doctor.record.sites import is_of_doctor
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


class WarningLines(Signal):
    """Replaces Python's function that shows a warning."""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of this function, which Python looks up by its name for every warning."""
        yield Hook(warnings, "_showwarnmsg", self._naming_program)

    def _naming_program(self, show: Callable[[warnings.WarningMessage], None]) -> Any:
        guard = self.watched.guard

        def shown(given: warnings.WarningMessage) -> None:
            if guard.is_working:
                return
            named = _named(given) if is_of_doctor(given.filename) else None
            caller = _caller(named)
            if named is None or caller is None:
                show(given)
                return
            said = named.f_globals.get("__warningregistry__", {})
            said.pop((str(given.message), given.category, given.lineno), None)
            warnings.warn_explicit(
                given.message,
                given.category,
                caller.f_code.co_filename,
                caller.f_lineno,
                caller.f_globals.get("__name__"),
                caller.f_globals.setdefault("__warningregistry__", {}),
                source=given.source,
            )

        return shown


def _named(given: warnings.WarningMessage) -> FrameType | None:
    frame: FrameType | None = calling_frame()
    while frame is not None:
        if frame.f_code.co_filename == given.filename and frame.f_lineno == given.lineno:
            break
        frame = frame.f_back
    return frame


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside doctor that led to a frame; None if unknown."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file == overrides.__file__:  # A function of torch that called doctor: skip it, too.
            frame = frame.f_back
        elif not is_of_doctor(file):
            break
        frame = frame.f_back if frame is not None else None
    return frame
