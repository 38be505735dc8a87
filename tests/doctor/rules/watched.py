"""Programs of `programs` under watch; each runs once, whichever tests read its evidence."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from doctor import programs
from halfstep.doctor import Evidence, Watch

PROGRAMS = {
    module.CODE: module
    for each in pkgutil.walk_packages(programs.__path__, f"{programs.__name__}.")
    if hasattr(module := importlib.import_module(each.name), "CODE")
}


def watched(code: str, name: str, *, errors: type[Exception] | tuple[()] = ()) -> Evidence:
    """Return the evidence of a program, which may end with one of these errors."""
    evidence, error = _ran(code, name)
    if error is not None and not isinstance(error, errors):
        raise error
    return evidence


def watch_anew(code: str, name: str) -> tuple[Evidence, Exception | None]:
    """Run a program in the state in which the process is now; return its error, too."""
    watch, error = Watch(), None
    try:
        with watch:
            getattr(PROGRAMS[code], name)()
    except Exception as raised:  # noqa: BLE001  (the test says which may be raised)
        error = raised.with_traceback(None)
    assert not watch.troubles, watch.troubles
    evidence = watch.close()
    assert not [each.note for each in evidence.replays if each.note]
    return evidence, error


_ran = cache(watch_anew)
