"""Measures the listed operators on the device that is here, and writes them into one file.

The file is written after every few calls, and a later run measures only what it lacks, so that the
work can be done in pieces of any length.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from halfstep.advise.predict import measured
from halfstep.advise.predict.operators import described
from halfstep.bench.operators import spec as specs
from halfstep.bench.operators.timing import launch_seconds, seconds
from halfstep.errors import UserError, in_a_line
from halfstep.files import json_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.bench.operators.spec import Spec

LIST = Path(__file__).with_name("commonest.json")
_OFTEN = 5.0
"""Seconds between writes of the file."""


def commonest() -> list[Spec]:
    """Return the listed calls, the most important one first."""
    operators: list[Spec] = json.loads(LIST.read_text())
    return operators


def variants(listed: Sequence[Spec]) -> Iterator[tuple[str, Spec, str, bool]]:
    """Yield every call in each format and layout: a name, the call, the format, whether NHWC."""
    for call in listed:
        text = json.dumps(call, separators=(",", ":"))
        for format_ in specs.formats(call):
            for last in (False, True) if specs.has_images(call) else (False,):
                yield f"{format_} {'NHWC' if last else 'NCHW'} {text}", call, format_, last


def rows(
    listed: Sequence[Spec],
    device: torch.device,
    *,
    done: Container[str] = (),
    shrink: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yield a row for every call in each format and layout, measured when it is asked for.

    Args:
        listed: The calls.
        device: The device.
        done: The names of rows to leave out.
        shrink: The number by which sizes are divided, for a test.
    """
    for name, call, format_, last in variants(listed):
        if name not in done:
            yield {"name": name} | _row(call, format_, device, last=last, shrink=shrink)


def measure(
    path: Path,
    gpu: Gpu,
    device: torch.device,
    *,
    limit: float,
    listed: Sequence[Spec] | None = None,
    shrink: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[int, int]:
    """Measure the calls that a file lacks, until a time limit, and write them into the file.

    Args:
        path: The file; it need not exist.
        gpu: The datasheet of the device, which the file contains.
        device: The device.
        limit: Seconds after which no other call is begun.
        listed: The calls; by default the commonest ones.
        shrink: The number by which batches are divided, for a test.
        tell: Called with the progress.

    Returns:
        The number of calls in the file, refused ones included, and the number of all calls.

    Raises:
        UserError: If the file is of another device or of another version of PyTorch.
    """
    document = _document(path, gpu, device)
    kept, chosen = document["rows"], commonest() if listed is None else listed
    number = sum(1 for _ in variants(chosen))
    began = written = time.monotonic()
    document["launch_seconds"] = launch_seconds(device)
    for row in rows(
        chosen, device, done={measurement["name"] for measurement in kept}, shrink=shrink
    ):
        kept.append(row)
        now = time.monotonic()
        if now - began > limit:
            break
        if now - written > _OFTEN:
            write_atomically(path, json_text(document, indent=1) + "\n")
            tell(f"{len(kept)} of {number} calls")
            written = now
    write_atomically(path, json_text(document, indent=1) + "\n")
    return len(kept), number


def _document(path: Path, gpu: Gpu, device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    new: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if cuda else "CPU",
        "datasheet": asdict(gpu),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "date": datetime.now(UTC).date().isoformat(),
        "launch_seconds": 0.0,
        "rows": [],
    }
    if not path.exists():
        return new
    stored = measured.document(path)
    for key in ("device", "torch", "cudnn"):
        if stored[key] != new[key]:
            raise UserError(
                f"{path} was measured with {key} {stored[key]}, and here it is {new[key]}; write "
                "another file with --out"
            )
    return stored


def _row(
    call: Spec, format_: str, device: torch.device, *, last: bool, shrink: int
) -> dict[str, Any]:
    """Measure a call; one that fails on this device is refused with the reason."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = format_ == "tf32"
    try:
        args, named = specs.arguments(
            call, format_, channels_last=last, device=device, shrink=shrink
        )
        run = specs.call(call, args, named)
        taken = seconds(run, device)
        ops = [asdict(op) for op in _described(call, args, named, run())]
        if not ops:
            return {"refused": "it launches no kernel"}
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return {"refused": in_a_line(error)[:200]}
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"tf32": format_ == "tf32", "seconds": taken, "ops": ops}


def _described(call: Spec, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> Any:
    name, overload = call["op"].split(".")
    return described(getattr(getattr(torch.ops.aten, name), overload), args, named, out)
