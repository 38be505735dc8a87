"""Measures an item, and keeps its document: its rows, and what they were measured with.

The document is written after every row, so that an item that crashes or is ended loses no row that
it had. `complete` says whether all rows are there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.util
import json
import platform
import subprocess
import sys
import time
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from gpu_items import HERE, ROOT
from halfstep.files import json_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpu_items import At, Item

    Document = dict[str, Any]

SOURCE = ROOT / "src" / "halfstep"
SHARED = (HERE / "turns.py", HERE / "steps.py")
"""How items measure; a change makes every result old."""
_PACKAGES = ("timm", "torchao", "torchvision", "triton", "numpy")
_REFUSED = "refused"


def digest(item: Item) -> str:
    """Return the hash of the files that decide what an item measures: their names and contents."""
    total = hashlib.sha256(_source().encode())
    for path in (HERE / item.script, *SHARED, *(ROOT / each for each in item.also)):
        total.update(_hash(path).encode())
    return total.hexdigest()[:16]


@lru_cache
def _source() -> str:
    return _hash(SOURCE)


def _hash(path: Path) -> str:
    """Return the hash of a file, or of the files of a folder, by their sorted paths."""
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            total.update(f"{file.relative_to(path.parent).as_posix()} {content}\n".encode())
    return total.hexdigest()


def read(path: Path) -> Document:
    """Return the document of a file; an empty one if there is no file."""
    document: Document = json.loads(path.read_text()) if path.exists() else {}
    return document


def keep(document: Document, folder: Path) -> bool:
    """Write a document into a folder, and tell so; a complete one there outlives a part."""
    path = folder / f"{document['item']}.json"
    if not document["complete"] and read(path).get("complete"):
        return False
    write_atomically(path, json_text(document, indent=2) + "\n")
    return True


def refusals(document: Document) -> list[str]:
    """Return why rows of a document have no figures."""
    return [row[_REFUSED] for row in document.get("rows", []) if _REFUSED in row]


def measure(item: Item, at: At, folder: Path) -> Document:
    """Measure an item, and write its document into a folder after every row.

    Raises:
        Exception: What the item raises.
        RuntimeError: If it has no row with figures.
    """
    began = time.monotonic()
    document: Document = {
        "item": item.name,
        "answers": item.answers,
        "complete": False,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": commit(),
        "hash": digest(item),
    }
    rows: list[dict[str, Any]] = []
    for row in _function(item)(at, *item.arguments):
        rows.append(row)
        document |= _environment(at) if len(rows) == 1 else {}
        document |= {"seconds": round(time.monotonic() - began, 1), "rows": rows}
        keep(document, folder)
    if len(refusals(document)) == len(rows):
        raise RuntimeError(f"nothing was measured: {'; '.join(refusals(document)) or 'no rows'}")
    document |= {"complete": True}
    keep(document, folder)
    return document


def _function(item: Item) -> Callable[..., Iterator[dict[str, Any]]]:
    """Return the function of an item's script."""
    path = HERE / item.script
    name = f"gpu_items.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    function: Callable[..., Iterator[dict[str, Any]]] = module.rows
    return function


def commit() -> str | None:
    """Return the commit of the tree, "-dirty" if files differ from it; None without git."""
    command = ("describe", "--always", "--dirty", "--abbrev=8", "--match=")
    return _output("git", "-C", str(ROOT), *command)


def _environment(at: At) -> dict[str, Any]:
    """Return the device and the versions; torch's only if the item has imported it."""
    torch = sys.modules.get("torch")
    found: dict[str, str | None] = {"python": platform.python_version(), "halfstep": _halfstep()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    device = at.device
    if torch is not None:
        found |= {"torch": str(torch.__version__), "cuda": torch.version.cuda}
        if at.on_gpu:
            device = torch.cuda.get_device_name()
            found["cudnn"] = str(torch.backends.cudnn.version())
    found["driver"] = _driver() if at.on_gpu else None
    return {"device": device, "versions": found}


def _halfstep() -> str:
    from halfstep import __version__

    return __version__


def _driver() -> str | None:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")


def _output(*command: str) -> str | None:
    """Return what a command prints; None if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
