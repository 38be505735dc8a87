"""Loads jobs in order: in the current process, or in workers of torch's DataLoader.

The workers persist across epochs. If neither workers nor page-locked memory are needed, no
DataLoader is used, because its overhead exceeds the time for loading a small batch.
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

from halfstep import caller, step_observer
from halfstep.errors import UserError, reason
from halfstep.train.processes.orphans import end_with, end_with_distant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from halfstep.train.data.pipeline.samples import Loaded


@contextmanager
def dead_workers_explained() -> Iterator[None]:
    """Replace torch's error for a dead worker by one that says what the user can do.

    The kernel often kills a worker when memory runs out. torch then raises its error at an
    arbitrary point of the training process, so that a whole block must be covered.
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise UserError(
            f"a process that loads images has died ({reason(error)}), often because memory ran "
            "out; write a smaller data.workers (or num_workers of your own DataLoader), and "
            f"{caller.setting(resume='auto')} to continue from the newest checkpoint"
        ) from error


class Loader:
    """Loads the batches of jobs, in order; see `Batches` for the arguments."""

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
            # Without this, a DataLoader draws from torch's global generator in every epoch.
            generator=torch.Generator(),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pinned,
        )

    def hold(self) -> None:
        """Do nothing: images are read when their batch is loaded."""

    def load(self, jobs: Iterator[Any]) -> Iterator[Loaded]:
        """Load jobs in order; jobs of an earlier call that were not loaded are dropped."""
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
    """A sampler that yields the jobs of the latest call of `Loader.load`."""

    def __init__(self) -> None:
        self.ahead: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.ahead


def _as_it_is(loaded: Any) -> Any:
    """Return a loaded batch unchanged; torch's default `collate_fn` would convert it."""
    return loaded


def _leave_all_to_the_run(run: int, worker: int) -> None:
    """Make a worker ignore signals and closed connections, which the training process handles.

    After a Ctrl-C or a scheduler's signal, the training process may finish a step and save a
    checkpoint. The error from a worker that the signal has killed would interrupt it.
    """
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # Not ignored, because Python ends the remaining workers with SIGTERM when it exits.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.excepthook = _print_unless_cut_off
    if os.getppid() == run:
        end_with(run)
    else:  # a start method such as forkserver puts a process in between
        end_with_distant(run)


def _print_unless_cut_off(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an exception of a worker's thread, unless the run has closed the connection.

    The thread (`multiprocessing.resource_sharer`) passes loaded tensors to the run. A run that ends
    closes the connection, and reports the reason itself.
    """
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, traceback)
