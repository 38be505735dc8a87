"""Files that are either complete or absent, and JSON that any parser can read.

halfstep writes its files with `write_atomically`, so that a kill, a Ctrl-C or a full disk never
leaves an incomplete file under its final name.
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
    """Write a file atomically: other processes see the old file or the new one, never a part.

    Args:
        path: The file to write; missing parent folders are created.
        content: Text (written as UTF-8), bytes, or a function that writes to the open binary file,
            such as `functools.partial(torch.save, state)`.

    Raises:
        OSError: If the file cannot be written; an older file under this name stays unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: it creates files with mode 0600, and the final file would keep that mode.
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
    """Parse JSON.

    Raises:
        ValueError: If `text` is not valid JSON, or is nested deeper than Python's recursion limit.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_STRICT = json.JSONEncoder(allow_nan=False)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as strict JSON; NaN and infinities become "nan", "inf" and "-inf"."""
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
