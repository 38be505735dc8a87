"""Watches the processes that a program starts itself, and collects their records.

A process that `torch.multiprocessing.spawn` or `multiprocessing.Process` starts runs a function of
the program. Under `halfstep doctor`, this function runs under a watch of its own, whose record the
parent reads at its end.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.doctor.internals import set_target, target_of
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.files import write_atomically
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.watched import Watched

_OF_LIBRARIES = ("torch", "multiprocessing", "concurrent", "halfstep")
MOST = 64


@dataclass(frozen=True, slots=True)
class WatchedFunction:
    """A function that a child process runs under a watch.

    Attributes:
        function: The function.
        directory: Where the record is written.
        watch: Makes the watch.
    """

    function: Callable[..., Any]
    directory: str
    watch: Callable[[], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, and write the record of its watch, also after an error."""
        try:
            watch = self.watch().start()
        except ValueError:  # The process is watched already.
            return self.function(*args, **kwargs)
        try:
            with watch:
                return self.function(*args, **kwargs)
        finally:
            path = Path(self.directory) / f"{os.getpid()}.json"
            write_atomically(path, watch.close().to_json())


class Children(Signal):
    """Wraps the functions that child processes run."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._directory = ""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the two ways to start a process."""
        if self.watched.settings.child is not None:
            spawning = sys.modules["torch.multiprocessing.spawn"]
            yield Hook(spawning, "start_processes", self.watched.here(self._on_start_processes))
            yield Hook(BaseProcess, "start", self.watched.here(self._on_start))

    def _on_start_processes(
        self, original: Any, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        return original(self._watched(function), *args, **kwargs)

    def _on_start(self, original: Any, process: BaseProcess, /) -> Any:
        target = target_of(process)
        if target is not None and not _is_of_a_library(target):
            set_target(process, self._watched(target))
        return original(process)

    def _watched(self, function: Callable[..., Any]) -> WatchedFunction:
        assert self.watched.settings.child is not None
        self._directory = self._directory or tempfile.mkdtemp(prefix="halfstep-children-")
        return WatchedFunction(function, self._directory, self.watched.settings.child)

    def freeze(self) -> dict[str, Any]:
        """Return the records of the children that have ended, as JSON, and delete the files."""
        if not self._directory:
            return {"children": ()}
        files = sorted(Path(self._directory).glob("*.json"))[:MOST]
        found = tuple(each.read_text(encoding="utf-8") for each in files)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = ""
        return {"children": found}


def _is_of_a_library(target: Any) -> bool:
    """Return whether a process works for a library, such as a worker of a data loader."""
    module = getattr(target, "__module__", None) or type(target).__module__
    return module.partition(".")[0] in _OF_LIBRARIES
