"""Makes sure that no process of a run outlives the process that started it.

A process that is ended by SIGKILL cannot end its children. So each child asks the kernel to kill it
when its parent ends. This works on Linux only; on other systems a child runs until it notices the
end of its parent by itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl that sets the signal which a process gets when its parent ends."""


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends; at once if the parent has already ended."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_distant(ancestor: int) -> None:
    """Have this process killed when `ancestor`, a process other than its parent, ends.

    The parent of a data worker can be a fork server, which lives as long as its children. After a
    run is killed, its workers would keep the fork server alive, and so never see their parent end.
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
