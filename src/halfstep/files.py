"""Files that are either whole or not there, and JSON that any parser can read.

Everything that halfstep leaves on disk passes through `write_atomically`, so that a kill, a Ctrl-C
or a full disk never leaves half a file under its final name.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file in one step: other processes see the old one or the new one, never a part.

    Args:
        path: Where to write; missing folders on the way are made.
        content: Text (UTF-8), bytes, or a function that writes to the open binary file, such as
            `functools.partial(torch.save, state)`.

    Raises:
        OSError: If the file cannot be written; an older file under this name is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: its files are private to the owner (0600), and the mode would stay.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says.

    Raises:
        ValueError: If it is no JSON, or nested deeper than Python's stack.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_STRICT = json.JSONEncoder(allow_nan=False)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as strict JSON; nan and the infinities become "nan", "inf" and "-inf"."""
    try:
        if indent is None:
            return _STRICT.encode(value)
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
