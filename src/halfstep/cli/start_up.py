"""Quick imports at the start of a command.

torch and what is built on it make a million objects that stay. The garbage collector would go
through them again and again while they come, a third of all the time that a command takes to start.
"""

import atexit
import gc
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
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # What is frozen outlives the interpreter, of which Triton's bindings tell at length.
        atexit.register(gc.unfreeze)
