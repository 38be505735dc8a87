"""Where the processes of one attempt meet: a store with nothing in it of the attempts before.

torchrun keeps one store for all restarts of a job (torch 2.15), so that addresses of processes that
are dead lie in it. How often a node has started its processes again, each node counts for itself.
So the first rank makes up a name for the attempt, and tells it to all who ask now.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # made in C++
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # made in C++

_POLL_S = 0.02


def meet(timeout: float) -> tuple[Store, int, int]:
    """Return the store of this attempt, the rank of this process, and how many there are.

    Args:
        timeout: Seconds to wait for the others.

    Raises:
        RuntimeError: If some do not come.
    """
    store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    deadline = time.monotonic() + timeout
    name = _invite(store, size, deadline) if rank == 0 else _ask(store, rank, timeout)
    return PrefixStore(name, store), rank, size


def _ask(store: Store, rank: int, timeout: float) -> str:
    question = uuid.uuid4().hex
    store.set(f"halfstep/asks/{rank}", question)
    answer = f"halfstep/told/{question}"
    store.wait([answer], timedelta(seconds=timeout))
    name = store.get(answer).decode()
    store.add(f"{name}/here", 1)
    return name


def _invite(store: Store, size: int, deadline: float) -> str:
    """Answer every question, old ones too, until all ranks have heard the name."""
    name = f"halfstep/{uuid.uuid4().hex}"
    answered: set[str] = set()
    while store.add(f"{name}/here", 0) < size - 1:
        asked = [
            key for key in (f"halfstep/asks/{r}" for r in range(1, size)) if store.check([key])
        ]
        for question in {store.get(key).decode() for key in asked} - answered:
            store.set(f"halfstep/told/{question}", name)
            answered.add(question)
        if time.monotonic() > deadline:
            raise RuntimeError("timed out waiting for the other processes")
        time.sleep(_POLL_S)
    return name
