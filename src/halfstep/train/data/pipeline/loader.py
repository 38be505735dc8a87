"""Loads one job after the other: here, or in workers of torch's DataLoader.

The workers live on from epoch to epoch. Without workers a DataLoader has nothing to do, and would
take longer for a small batch than loading it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from halfstep import step_observer
from halfstep.errors import UserError, reason
from halfstep.train.processes.orphans import end_with, end_with_distant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from halfstep.train.data.pipeline.samples import Loaded


@contextmanager
def dead_workers_explained() -> Iterator[None]:
    """Say what follows where a worker has died, as the kernel ends it where memory runs out.

    torch raises it wherever the training process is when it hears of it.
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise UserError(
            f"a process that loads images has died ({reason(error)}), often because memory ran "
            "out; write a smaller data.workers, and --resume auto to continue from the newest "
            "checkpoint"
        ) from error


class Loader:
    """Turns jobs into what the samples make of them, in order; see `Batches` for the arguments."""

    def __init__(self, samples: Dataset[Loaded], *, workers: int, pinned: bool) -> None:
        self._samples = samples
        self._jobs = _Jobs()
        self._loader: DataLoader[Loaded] | None = None
        if not (workers or pinned):
            return
        self._loader = DataLoader(
            samples,
            batch_size=None,  # a job is a whole batch
            sampler=self._jobs,
            collate_fn=_as_it_is,
            worker_init_fn=partial(_leave_all_to_the_run, os.getpid()),
            # Its own, since a loader without one draws from torch's at every epoch.
            generator=torch.Generator(),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pinned,
        )

    def load(self, jobs: Iterator[Any]) -> Iterator[Loaded]:
        """Load jobs; what is left of those given before is forgotten."""
        if self._loader is None:
            return _load_here(self._samples, jobs)
        self._jobs.ahead = jobs
        return iter(self._loader)


def _load_here(samples: Dataset[Loaded], jobs: Iterator[Any]) -> Iterator[Loaded]:
    for job in jobs:
        with step_observer.active.aside():
            loaded = samples[job]
        yield loaded


class _Jobs(Sampler[Any]):
    """The jobs of whichever epoch is next."""

    def __init__(self) -> None:
        self.ahead: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.ahead


def _as_it_is(loaded: Any) -> Any:
    """Return what a worker loaded; torch would convert it."""
    return loaded


def _leave_all_to_the_run(run: int, worker: int) -> None:
    """Ignore signals and closed connections, which the training process handles.

    The training process decides what follows a Ctrl-C or a scheduler's signal: it may want to
    finish a step and save, which a worker that is killed by a signal would break off with an error.
    """
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # Not ignored, since it is how Python ends the workers that are left when it exits.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.excepthook = _print_unless_cut_off
    if os.getppid() == run:
        end_with(run)
    else:  # some start methods put a process in between
        end_with_distant(run)


def _print_unless_cut_off(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print what ends a thread of a worker, unless the run has closed its connection.

    A thread hands over the tensors that the worker has loaded. A run that ends closes the
    connection, and reports why itself.
    """
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, traceback)
