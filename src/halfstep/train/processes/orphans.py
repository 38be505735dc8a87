"""No process of a run outlives the one that started it, however that ends.

SIGKILL leaves no time to end others, so each process asks the kernel to. On Linux; elsewhere it
goes on until it notices by itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when the one that started it ends."""


def end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, now if it has ended already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_distant(ancestor: int) -> None:
    """Let this process be killed when a process ends that did not start it itself.

    A fork server lives as long as what it has started. Workers of a killed run would keep it alive,
    and never see their own parent end.
    """
    if sys.platform != "linux":
        return
    try:
        ending = os.pidfd_open(ancestor)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait() -> None:
        select.select([ending], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="ends with the run", daemon=True).start()
