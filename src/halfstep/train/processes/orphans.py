"""No process of a run outlives the one that started it, however that ends.

SIGKILL leaves no time to end others, so each process asks the kernel to. On Linux; elsewhere it
goes on until it notices by itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when the one that started it ends."""


def end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, now if it has ended already.

    Args:
        parent: Process id of the one that started this one.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
