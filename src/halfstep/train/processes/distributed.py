"""Joins the processes that torchrun started, and reports a lost process in one line.

    torchrun --nproc-per-node 2 -m halfstep train digits
    halfstep train digits --processes 2

torchrun gives each process its rank, and a key-value store that outlives the process. Gradients are
exchanged through NCCL between GPUs and through gloo between CPUs; the trainer's own messages always
use gloo.
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
from halfstep.kernels import accelerators
from halfstep.train.environment import pick_device
from halfstep.train.processes.processes import ALONE, Processes, job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed import Store  # type: ignore[attr-defined]  # made in C++

_ROLL_CALL_S = 5.0
_POLL_S = 0.02
_NCCL_GRACE_S = 60.0
"""NCCL's collectives time out this much later than the trainer's, which name the missing rank."""
_TIMEOUT_ERRORS = ("timed out", "timeout")
_CONNECTION_ERRORS = ("gloo", "connection closed by peer", "connection reset", "broken pipe")


class Lost(Exception):  # noqa: N818  (nothing is wrong with this process)
    """Another process died or hangs; the message names it, or is "" if another rank reports it."""


def restarts() -> int:
    """Return how many times torchrun has started this job's processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def local() -> int:
    """Return the index of this process among those on its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def began(run: Path) -> bool:
    """Tell whether this torchrun job started the run in a directory, before a restart."""
    try:
        environment = parse_json((run / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "job" in environment and environment["job"] == job()


@contextmanager
def joined(device_name: str, timeout: float) -> Iterator[Processes]:
    """Join the other processes while the block runs; without torchrun this process is alone.

    Args:
        device_name: The config's `device`.
        timeout: Seconds to wait for another process.

    Raises:
        UserError: If there are too few GPUs.
        Lost: If another process died or hangs.
    """
    if not os.environ.keys() >= {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}:
        yield ALONE
        return
    device = own_device(device_name)
    waits, later = (timedelta(seconds=seconds) for seconds in (timeout, timeout + _NCCL_GRACE_S))
    try:
        store, rank, size = _meet(timeout)
    except (RuntimeError, dist.DistError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise Lost(
            f"rank {os.environ['RANK']} ({socket.gethostname()}) did not find the other processes "
            f"at {where} within {timeout:g} s"
        ) from error
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
        backend = dist.get_default_backend_for_device(device)  # nccl on GPUs of NVIDIA and AMD
        settings: dict[str, Any] = {"backend": backend, "timeout": later, "device_id": device}
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
    with suppress(RuntimeError):  # a process that left early no longer matters
        dist.destroy_process_group()


def _meet(timeout: float) -> tuple[Store, int, int]:
    """Return a store for this attempt alone, the rank of this process, and the number of processes.

    torchrun keeps one store for all restarts of a job (torch 2.15), which still contains the
    addresses of dead processes. Each node counts restarts on its own, so the count cannot identify
    the attempt. Instead the first rank chooses a unique prefix for the attempt, and sends it to
    every rank that requests it.
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
    """Send the prefix to every rank that requests it, until all ranks have confirmed it.

    Outdated requests of earlier attempts are answered as well.
    """
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
    """Return the device of this process; `name` is the config's `device`.

    Raises:
        UserError: If the config names one GPU for several processes of this machine, or if there
            are fewer GPUs than processes.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ":" in name and here > 1:
        raise UserError(
            f"device is {name!r}, but each of {here} processes takes a GPU of its own; write "
            "device=cuda"
        )
    refuse_too_few_gpus(name, here)
    device = pick_device(name)
    return (
        torch.device(device.type, local()) if device.type != "cpu" and ":" not in name else device
    )


def refuse_too_few_gpus(name: str, processes: int) -> None:
    """Refuse more processes than GPUs on this machine, if each process needs its own GPU.

    Raises:
        UserError: If there are fewer GPUs than processes, or none that torch can use.
    """
    if ":" in name or pick_device(name).type == "cpu":
        return
    gpus = len(accelerators.present())
    if processes > gpus:
        raise UserError(
            f"{processes} processes on this machine want a GPU each, and there are {gpus}; write "
            f"torchrun --nproc-per-node {gpus} or halfstep train --processes {gpus}, or device=cpu"
        )


def _explained(
    error: Exception, store: Store, rank: int, hosts: list[str], timeout: float
) -> str | None:
    """Return a line that explains the error of a collective.

    The line is "" if another rank reports the error. None means that the error is not about other
    processes.
    """
    message = str(error).lower()
    of_others = isinstance(error, dist.DistError) or any(
        word in message for word in _CONNECTION_ERRORS
    )
    late = any(word in message for word in _TIMEOUT_ERRORS)
    if not of_others:
        return None
    here = f"rank {rank} ({hosts[rank]})"
    if not late:
        return f"{here} lost its connection to another process, which has ended"
    present = _roll_call(store, rank, len(hosts))
    if rank != min(present):
        return ""
    missing = [
        f"rank {other} ({hosts[other]})" for other in range(len(hosts)) if other not in present
    ]
    if not missing:
        return f"the processes have waited for each other for {timeout:g} s; none of them hangs now"
    return f"{', '.join(missing)} did not answer for {timeout:g} s: hung, or cut off"


def _roll_call(store: Store, rank: int, size: int) -> set[int]:
    """Return the ranks that respond: the living ones, whose collective also timed out."""
    present = {rank}
    with suppress(RuntimeError, dist.DistError):  # the process of the store may have ended
        store.set(f"here/{rank}", "")
        until = time.monotonic() + _ROLL_CALL_S
        while len(present) < size and time.monotonic() < until:
            time.sleep(_POLL_S)
            present |= {other for other in range(size) if store.check([f"here/{other}"])}
    return present
