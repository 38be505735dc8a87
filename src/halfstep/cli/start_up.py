"""Quick imports at the start of a command.

torch and what is built on it make a million objects that stay. The garbage collector would go
through them again and again while they come, a third of all the time that a command takes to start.
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

    In a process that has torch already, nothing changes: what it holds is not all there to stay.
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
    """Close stderr for the process's last moments.

    Some libraries (triton, which is built with nanobind) list there, in dozens of lines, what was
    not collected: all that was left out of collections. To collect it takes over a second.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
