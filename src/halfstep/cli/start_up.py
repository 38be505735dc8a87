"""Fast imports at the start of a command.

The import of torch and related packages creates a million permanent objects. Garbage collections
during the imports would take a third of the start-up time of a command.
"""

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch garbage collection off during imports, and exclude the new objects from later ones.

    If the process has already imported torch, nothing changes, because some of the existing objects
    are temporary.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    # Functions run at exit in reverse order: after those that the imports register.
    atexit.register(_say_no_more)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _say_no_more() -> None:
    """Redirect stderr to the null device at the end of the process.

    Some libraries (triton, through nanobind) print dozens of lines about objects that were not
    collected. To collect these objects would take more than a second.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
