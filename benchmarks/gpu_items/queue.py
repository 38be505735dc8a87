"""Runs items one after the other, each in a process of its own, within the time that there is."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_items import ROOT, At
from gpu_items.document import digest, keep, measure, read, refusals
from halfstep import __version__
from halfstep.errors import in_a_line
from halfstep.files import json_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_items import Item
    from gpu_items.document import Document

MEASURED, SKIPPED, FAILED = "measured", "skipped, unchanged", "failed"
NOT_BEGUN = "not begun"
_OUTPUT = 4000
"""The last characters of an item's output that are kept if it fails."""


@dataclass
class Ended:
    """How an item ended.

    Attributes:
        item: Its name.
        state: "measured", "skipped, unchanged", "failed" or "not begun".
        seconds: How long it took.
        note: The reason, or what is missing of its result, in a line.
        output: The end of its output, if it failed.
    """

    item: str
    state: str = NOT_BEGUN
    seconds: float = 0.0
    note: str = ""
    output: str = ""


@dataclass
class Queue:
    """A run of items.

    Attributes:
        items: The items, in order.
        results: The folder of the results.
        out: A folder for `gpu.json`; None for none.
        seconds: The time of the whole run.
        device: "cuda" or "cpu".
        toy: Whether sizes are as small as can be.
        alone: Whether each item has a process of its own.
        force: Whether items are measured whose results are not old.
    """

    items: Sequence[Item]
    results: Path
    out: Path | None = None
    seconds: float = math.inf
    device: str = "cuda"
    toy: bool = False
    alone: bool = True
    force: bool = False
    ended: list[Ended] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)

    def run(self) -> None:
        """Run the items; a Ctrl-C ends the one that is running, and those after it do not begin."""
        began = time.monotonic()
        self.ended = [Ended(item.name) for item in self.items]
        try:
            with tempfile.TemporaryDirectory(prefix="halfstep-gpu-") as scratch:
                for item, ended in zip(self.items, self.ended, strict=True):
                    left = self.seconds - (time.monotonic() - began)
                    self._take(item, ended, left, Path(scratch))
        finally:
            self._write_out()

    def _take(self, item: Item, ended: Ended, left: float, scratch: Path) -> None:
        """Measure an item if it is due, if its packages are here, and if there is time for it."""
        if not self.force and is_fresh(item, self.results):
            ended.state = SKIPPED
            return
        if missing := [name for name in item.needs if not _is_installed(name)]:
            ended.note = f"it needs {' and '.join(missing)}, not installed here"
            return
        if item.seconds > left:
            ended.note = f"it may take {item.seconds} s, and {max(0, left):.0f} s were left"
            return
        print(f"{item.name}: {item.answers}", flush=True)
        began = time.monotonic()
        ended.state = FAILED
        ended.note = "interrupted"  # unless it ends otherwise
        try:
            ended.note = (self._in_a_process if self.alone else self._here)(item, scratch)
            ended.state = FAILED if ended.note else MEASURED
        finally:
            ended.seconds = round(time.monotonic() - began, 1)
            self._collect(item, ended, scratch)
            self._write_out()

    def _collect(self, item: Item, ended: Ended, scratch: Path) -> None:
        """Keep what an item has measured, and the output of one that failed."""
        document = read(scratch / f"{item.name}.json")
        reasons = refusals(document)
        if len(reasons) < len(document.get("rows", [])):
            self.documents[item.name] = document
            keep(document, self.results)
        if ended.state == FAILED:
            log = scratch / f"{item.name}.log"
            ended.output = log.read_text(errors="replace")[-_OUTPUT:] if log.exists() else ""
        elif reasons:
            ended.note = f"{len(reasons)} of {len(document['rows'])} rows refused: {reasons[0]}"

    def _in_a_process(self, item: Item, scratch: Path) -> str:
        """Measure an item in a process of its own; return why it failed, or ""."""
        arguments = json.dumps(asdict(item)), self.device, "toy" if self.toy else "", str(scratch)
        with (scratch / f"{item.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gpu_items", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(scratch),
                start_new_session=True,  # so that its own processes end with it
            )
            try:
                code = process.wait(item.seconds)
            except subprocess.TimeoutExpired:
                return f"longer than {item.seconds} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return f"exit code {code}: {_last_line(scratch / f'{item.name}.log')}" if code else ""

    def _here(self, item: Item, scratch: Path) -> str:
        """Measure an item in this process; return why it failed, or ""."""
        with (scratch / f"{item.name}.log").open("w") as log:
            try:
                with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                    measure(item, At(self.device, self.toy, math.inf), scratch)
            except Exception as error:  # noqa: BLE001  # an item that fails loses only itself
                return in_a_line(error)
        return ""

    def _write_out(self) -> None:
        if self.out is not None:
            content = {"ended": [asdict(each) for each in self.ended], "items": self.documents}
            write_atomically(self.out / "gpu.json", json_text(content, indent=1) + "\n")

    def table(self) -> str:
        """Return how each item ended."""
        width = max(len(item.name) for item in self.items)
        return "\n".join(
            f"{each.item:{width}}  {each.state:18}  {each.seconds:6.1f}  {each.note}".rstrip()
            for each in [Ended("item", "state", 0.0, "note"), *self.ended]
        ).replace("   0.0  note", "seconds  note", 1)


def is_fresh(item: Item, results: Path) -> bool:
    """Tell whether the result of an item is complete and of the present files."""
    document = read(results / f"{item.name}.json")
    return bool(document.get("complete")) and document.get("hash") == digest(item)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no output"


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of an item's process.

    Where halfstep is not installed, `scratch` holds what its installation would say of it.
    """
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = [ROOT / "benchmarks", ROOT / "src", *map(os.path.abspath, given), *_metadata(scratch)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def _metadata(scratch: Path) -> list[Path]:
    """Return the folder of a made-up installation of halfstep if there is none."""
    try:
        metadata.version("halfstep")
    except metadata.PackageNotFoundError:
        content = f"Metadata-Version: 2.1\nName: halfstep\nVersion: {__version__}\n"
        name = f"halfstep-{__version__}.dist-info"
        write_atomically(scratch / "installed" / name / "METADATA", content)
        return [scratch / "installed"]
    return []
