"""Joins the processes that torchrun started, and says in one line what became of a lost one.

    torchrun --nproc-per-node 2 -m halfstep train digits
    halfstep train digits --processes 2

torchrun gives each process its rank, and a store that outlives it. Gradients go by NCCL between
GPUs and by gloo between CPUs; what the trainer itself has to say always goes by gloo.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # made in C++
from torch.distributed.rendezvous import rendezvous

from halfstep.errors import UserError
from halfstep.files import parse_json
from halfstep.train.environment import pick_device
from halfstep.train.processes.processes import ALONE, Processes, job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed import Store  # type: ignore[attr-defined]  # made in C++

_ROLL_CALL_S = 5.0
_POLL_S = 0.02
_NCCL_GRACE_S = 60.0
"""How much later NCCL's collectives time out than the trainer's, which name the missing rank."""
_TIMEOUT_ERRORS = ("timed out", "timeout")
_CONNECTION_ERRORS = ("gloo", "connection closed by peer", "connection reset", "broken pipe")


class Lost(Exception):  # noqa: N818  (nothing is wrong with this process)
    """Another process died or hangs: which one, or nothing where another process says so."""


def restarts() -> int:
    """Return how many times torchrun has started this job's processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def local() -> int:
    """Return which of the processes on its machine this one is, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def began(run: Path) -> bool:
    """Tell whether this very job began the run in a directory, before a restart."""
    try:
        environment = parse_json((run / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "job" in environment and environment["job"] == job()


@contextmanager
def joined(device_name: str, timeout: float) -> Iterator[Processes]:
    """Join the other processes while the block runs; without torchrun this process is alone.

    `timeout` is in seconds: how long another process is waited for.

    Raises:
        UserError: If there are too few GPUs.
        Lost: If another process died or hangs.
    """
    if not os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}:
        yield ALONE
        return
    device = own_device(device_name)
    waits, later = (timedelta(seconds=each) for each in (timeout, timeout + _NCCL_GRACE_S))
    try:
        store, rank, size = _meet(timeout)
    except (RuntimeError, dist.DistError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise Lost(
            f"rank {os.environ['RANK']} ({socket.gethostname()}) did not find the other processes "
            f"at {where} within {timeout:g} s"
        ) from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
        settings: dict[str, Any] = {"backend": "nccl", "timeout": later, "device_id": device}
    else:
        settings = {"backend": "gloo", "timeout": waits}
    hosts = [""] * size
    try:
        dist.init_process_group(store=store, rank=rank, world_size=size, **settings)
        group = dist.new_group(backend="gloo", timeout=waits)
        assert isinstance(group, dist.ProcessGroup)
        dist.all_gather_object(hosts, socket.gethostname(), group=group)
        yield Processes(rank, size, device, group, tuple(hosts))
    except (RuntimeError, dist.DistError) as error:
        line = _explained(error, store, rank, hosts, timeout)
        if line is None:
            raise
        raise Lost(line) from error
    with suppress(RuntimeError):  # another one that has left early is no matter any more
        dist.destroy_process_group()


def _meet(timeout: float) -> tuple[Store, int, int]:
    """Return a store for this attempt alone, the rank of this process, and how many there are.

    torchrun keeps one store for all restarts of a job (torch 2.15), with the addresses of processes
    that are dead. Each node counts restarts for itself, so the first rank makes up a unique prefix
    for the attempt, and tells it to all who ask now.
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
    """Answer every question, old ones too, until all ranks have the name."""
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


def own_device(name: str) -> torch.device:
    """Return the device of this one of several processes on a machine.

    Raises:
        UserError: If a config gives all of them the same GPU, or there are fewer GPUs than
            processes.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ":" in name and here > 1:
        raise UserError(
            f"device is {name!r}, but each of {here} processes takes a GPU of its own; write "
            "device=cuda"
        )
    refuse_too_few_gpus(name, here)
    device = pick_device(name)
    return torch.device("cuda", local()) if device.type == "cuda" and ":" not in name else device


def refuse_too_few_gpus(name: str, processes: int) -> None:
    """Refuse more processes on this machine than there are GPUs for, if they want one each.

    Raises:
        UserError: If there are fewer GPUs, or none that torch can use.
    """
    if ":" in name or pick_device(name).type != "cuda":
        return
    gpus = torch.cuda.device_count()
    if processes > gpus:
        raise UserError(
            f"{processes} processes on this machine want a GPU each, and there are {gpus}; write "
            f"--nproc-per-node {gpus} (with halfstep train, --processes {gpus}), or device=cpu"
        )


def _explained(
    error: Exception, store: Store, rank: int, hosts: list[str], timeout: float
) -> str | None:
    """Return what a collective's error means; "" if another rank reports it, else None."""
    said = str(error).lower()
    of_others = isinstance(error, dist.DistError) or any(
        word in said for word in _CONNECTION_ERRORS
    )
    late = any(word in said for word in _TIMEOUT_ERRORS)
    if not of_others:
        return None
    here = f"rank {rank} ({hosts[rank]})"
    if not late:
        return f"{here} lost its connection to another process, which has ended"
    present = _roll_call(store, rank, len(hosts))
    if rank != min(present):
        return ""
    missing = [f"rank {each} ({hosts[each]})" for each in range(len(hosts)) if each not in present]
    if not missing:
        return f"the processes have waited for each other for {timeout:g} s; none of them hangs now"
    return f"{', '.join(missing)} did not answer for {timeout:g} s: hung, or cut off"


def _roll_call(store: Store, rank: int, size: int) -> set[int]:
    """Return the ranks that answer: those whose collective has timed out, too."""
    present = {rank}
    with suppress(RuntimeError, dist.DistError):  # the store may have gone with its process
        store.set(f"here/{rank}", "")
        until = time.monotonic() + _ROLL_CALL_S
        while len(present) < size and time.monotonic() < until:
            time.sleep(_POLL_S)
            present |= {each for each in range(size) if store.check([f"here/{each}"])}
    return present
