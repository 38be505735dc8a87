"""Quick imports at the start of a command.

Importing torch and its dependents makes a million permanent objects. Garbage collections during the
imports would take a third of the start-up time of a command.
"""

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage while modules are imported, and leave them out of later collections.

    Nothing changes in a process that has imported torch already: some of its objects are temporary.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    atexit.register(_say_no_more)  # before the imports, and so called after what they register
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _say_no_more() -> None:
    """Close stderr at the end of the process.

    Some libraries (triton, through nanobind) would print dozens of lines there about objects that
    were not collected, and collecting them takes over a second.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
