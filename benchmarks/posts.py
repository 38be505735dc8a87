"""Repeats five posts on mixed precision on one GPU, each in pieces of under 90 seconds.

    PYTHONPATH=src python benchmarks/posts.py leaves --data DIR --seconds 540
    PYTHONPATH=src python benchmarks/posts.py leaves           # again: what is left
    PYTHONPATH=src python benchmarks/posts.py leaves --toy     # on a CPU, in seconds

The parts are leaves, imagenette, alexnet, levels and cookbook. A run of the trainer is stopped
after 75 seconds by SIGUSR1, and continues from its checkpoint in the next piece, or in the next
call. Every finished piece is in `results/posts/PART.json` with its commit and versions, and the
part's table is printed, and written into docs/experiments/posts.md. DIR has the folders
classify-leaves, imagenette224 and cifar-10-batches-py. What needs several GPUs is in the table with
the command that would run it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
from gpu_items import At
from gpu_items.document import commit
from post_parts import PARTS

from halfstep.files import json_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from post_parts import Part, Piece

    Row = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "posts"
PAGE = "experiments/posts.md"
PIECE, STOPPED_AFTER = 90.0, 75.0
"""Seconds of a piece at most, and those after which a run is asked to write a checkpoint."""
CODE = "STEP_BYPASSES_SCALER"
_TOY = (
    *("data.resolution=32", "model.name=timm:test_resnet", "batch_size=2", "accumulate=1"),
    *("data.train.limit=4", "data.val.limit=2", "max_steps=1", "epochs=1", "device=cpu"),
    *("data.workers=0", "doctor=false", "tracking=[]", "threads=1"),
)


_TOY_PROGRAM = """
import torch
model, scaler = torch.nn.Linear(4, 1), torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    optimizer.step()
    scaler.update()
    optimizer.zero_grad()
"""
"""The double step of `examples/double_step.py`, three times."""


class Session:
    """A call of this script: where data, runs and results are, and how much time is left.

    Args:
        part: The name of the part.
        data: The folder of the images.
        runs: The folder of the runs, which continue in it.
        results: The folder of the results.
        seconds: The time of the whole call.
        toy: Whether sizes are as small as can be, on a CPU.
    """

    def __init__(
        self, part: str, data: Path, runs: Path, results: Path, seconds: float, *, toy: bool
    ) -> None:
        self.part: Part = PARTS[part]
        self.file = results / f"{part}.json"
        self.toy = toy
        self._data, self._runs = data, runs / part
        self._until = time.monotonic() + seconds
        self.rows: dict[str, Row] = {}
        if self.file.exists():
            self.rows = json.loads(self.file.read_text())["rows"]

    def run(self) -> None:
        """Make the pieces that are not made yet, one after the other, until the time is over."""
        for piece in self.part.pieces:
            while piece.kind != "elsewhere" and piece.name not in self.rows:
                if self._until - time.monotonic() < PIECE:
                    return
                row = self._made(piece)
                if row is not None:
                    self.rows[piece.name] = row | self._origin()
                    self._write()

    def _made(self, piece: Piece) -> Row | None:
        """Return the row of a piece; None if its run continues in the next piece."""
        print(f"{piece.name} ...", flush=True)
        try:
            if piece.kind == "loop":
                return self._timed(piece)
            return self._watched(piece) if piece.kind == "doctor" else self._trained(piece)
        except Exception as error:  # noqa: BLE001  # a piece that fails is a row
            return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}

    def _timed(self, piece: Piece) -> Row:
        from post_parts.loops import beside

        at = At("cpu" if self.toy else "cuda", self.toy, time.monotonic() + STOPPED_AFTER)
        theirs, ours = beside(piece.command[0], at)
        for row in (theirs, ours):
            if "refused" in row:
                return {"failed": row["refused"]}
        return {
            "ms": ours["ms"]["median"],
            "torch_ms": theirs["ms"]["median"],
            "ratio": ours["ratio"],
        }

    def _watched(self, piece: Piece) -> Row:
        """Run a program under doctor, and tell whether it names the second step."""
        command = [*map(self._filled, piece.command)]
        if self.toy:
            program = self._runs / "toy.py"
            write_atomically(program, _TOY_PROGRAM)
            command = [str(program)]
        watched = self._halfstep("doctor", str(ROOT / command[0]), *command[1:])
        said = b"".join(watched.communicate(timeout=PIECE)).decode(errors="replace")
        line = next((each.strip() for each in said.splitlines() if CODE in each), "")
        return {"found": line or f"{CODE} was not named"}

    def _trained(self, piece: Piece) -> Row | None:
        """Train until the run ends or is asked to stop, and return its row if it has ended."""
        config, *options = map(self._filled, piece.command)
        folder = self._runs / "".join(letter if letter.isalnum() else "-" for letter in piece.name)
        if self.toy:
            small = {each.partition("=")[0] for each in _TOY}
            kept = [each for each in options if each.partition("=")[0] not in small]
            return _row(_trained_here(config, [*kept, *_TOY], folder))
        given = ("--options", *options, "device=cuda", "doctor=false", "probes=false")
        process = self._halfstep("train", config, "--out", str(folder), "--resume", "auto", *given)
        try:
            output = process.communicate(timeout=STOPPED_AFTER)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            output = process.communicate(timeout=PIECE - STOPPED_AFTER)
        summary = folder / "summary.json"
        if summary.exists():
            return _row(json.loads(summary.read_text()))
        if process.returncode == 128 + signal.SIGUSR1:
            return None
        lines = b"".join(output).decode(errors="replace").strip().splitlines()
        return {"failed": lines[-1][:300] if lines else f"exit code {process.returncode}"}

    def _halfstep(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "halfstep", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"},
        )

    def _filled(self, text: str) -> str:
        """Return a piece of a command with the folders of this call."""
        if "{lists}" in text:
            self._make_lists()
        return text.format(data=self._data, lists=self._runs / "lists")

    def _make_lists(self) -> None:
        """Split the leaves into a training and a validation list."""
        folder = self._runs / "lists"
        if not (folder / "train_fold0.csv").exists():
            from halfstep.train.data.audit import folds

            folder.mkdir(parents=True, exist_ok=True)
            leaves = self._data / "classify-leaves"
            folds.write(folds.split(leaves / "train.csv", leaves, k=5, seed=0).folds[:1], folder)

    def _origin(self) -> Row:
        from importlib.metadata import version

        import torch

        from halfstep import __version__

        on_gpu = torch.cuda.is_available() and not self.toy
        return {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "commit": commit(),
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "versions": {"halfstep": __version__, "torch": version("torch")},
        }

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        content = {"title": self.part.title, "rows": self.rows}
        write_atomically(self.file, json_text(content, indent=2) + "\n")


def _trained_here(config: str, options: Sequence[str], folder: Path) -> Row:
    """Train in this process, and return the summary."""
    from halfstep.train.config.files import load
    from halfstep.train.loop.loop import train

    train(load(config, options), folder, quiet=True)
    summary: Row = json.loads((folder / "summary.json").read_text())
    return summary


def _row(summary: Row) -> Row:
    """Return the figures of a run that has ended."""
    names = (
        *("status", "best_accuracy", "final_accuracy", "first_nonfinite_step", "skipped_steps"),
        *("images_per_second", "peak_memory_bytes", "train_seconds"),
    )
    return {name: summary.get(name) for name in names}


def table(part: str, rows: dict[str, Row]) -> list[str]:
    """Return the table of a part: the post beside what was measured."""
    lines = [
        "| run | the post | here | images/s | peak GiB | measured on |",
        "| --- | --- | --- | --: | --: | --- |",
    ]
    for piece in PARTS[part].pieces:
        if piece.kind == "elsewhere":
            command = " ".join(piece.command)
            lines.append(f"| {piece.name} | {piece.post} | needs several GPUs: `{command}` | | | |")
            continue
        row = rows.get(piece.name)
        if row is None:
            lines.append(f"| {piece.name} | {piece.post} | not yet measured | | | |")
            continue
        where = f"{row['device']}, torch {row['versions']['torch']}, {row['commit']}"
        speed, memory = row.get("images_per_second"), row.get("peak_memory_bytes")
        lines.append(
            f"| {piece.name} | {piece.post} | {_said(row)} "
            f"| {'' if speed is None else f'{speed:,.0f}'} "
            f"| {'' if memory is None else f'{memory / 2**30:.1f}'} | {where} |"
        )
    if part == "imagenette":
        lines += ["", _regime(rows)]
    return lines


def _said(row: Row) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    if "found" in row:
        return str(row["found"])
    if "torch_ms" in row:
        ratio = row["ratio"]
        spread = f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
        return f"{row['ms']:.2f} ms, PyTorch {row['torch_ms']:.2f} ms: {spread}"
    if row["first_nonfinite_step"] is not None:
        return f"non-finite at step {row['first_nonfinite_step']}"
    accuracy = row["best_accuracy"]
    best = "no epoch ended" if accuracy is None else f"{100 * accuracy:.2f} %"
    return f"{best}, {row['skipped_steps']} skipped steps"


def _regime(rows: dict[str, Row]) -> str:
    """Say where pure half precision breaks, if it did."""
    pure = {name: row for name, row in rows.items() if name.startswith(("half-bn32", "o3"))}
    broken = [name for name, row in pure.items() if row.get("first_nonfinite_step") is not None]
    if broken:
        return f"Pure half precision is non-finite with: {'; '.join(broken)}."
    wanted = [
        piece.name
        for piece in PARTS["imagenette"].pieces
        if piece.name.startswith(("half-bn32", "o3"))
    ]
    if set(wanted) <= pure.keys():
        return (
            "No run in pure half precision was non-finite: the regime in which it breaks was not "
            "found."
        )
    return "The regime in which pure half precision breaks is not yet measured."


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("part", choices=PARTS)
    made.add_argument("--data", type=Path, default=Path("data"), metavar="DIR")
    made.add_argument("--runs", type=Path, default=Path("runs/posts"), metavar="DIR")
    made.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    made.add_argument("--seconds", type=float, default=540.0, metavar="N")
    made.add_argument("--toy", action="store_true", help="on a CPU at toy size, without results")
    made.add_argument("--table", action="store_true", help="only write the table into the page")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a part, print its table, and return the exit code: 1 if a piece failed."""
    line = parser()
    given = line.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        runs, results = given.runs.absolute(), given.results
        if given.toy:
            runs, results = Path(scratch) / "runs", Path(scratch)
        session = Session(
            given.part, given.data.absolute(), runs, results, given.seconds, toy=given.toy
        )
        needs = session.part.needs
        if not given.table:
            if needs and not (given.data / needs).exists():
                line.error(f"{given.data / needs} does not exist; write --data with its folder")
            session.run()
        lines = table(given.part, session.rows)
    print("\n".join([session.part.title, "", *lines]))
    if not given.toy and given.results == RESULTS:
        docs_table.put(PAGE, given.part, lines)
    return int(any("failed" in row for row in session.rows.values()))


if __name__ == "__main__":
    sys.exit(main())
