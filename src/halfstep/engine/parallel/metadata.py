"""Holds the `.metadata` of `torch.distributed.checkpoint`, which torch unpickles, to plain data.

A pickle names what it calls. Here it may name what describes tensors and files, and nothing else,
so that loading a checkpoint runs no code of whoever wrote it.
"""

from __future__ import annotations

import pickle
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib", "PureWindowsPath"),
    ("pathlib", "WindowsPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
}


def refuse_code(file: Path) -> None:
    """Refuse metadata that would call anything but what describes tensors.

    Args:
        file: A `.metadata`.

    Raises:
        ValueError: If it is damaged, or names anything else.
        OSError: If it cannot be read.
    """
    with file.open("rb") as opened:
        try:
            _PlainData(opened).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, IndexError) as error:
            raise ValueError(f"{str(file)!r} cannot be loaded: {error}") from error


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not (is_dtype or (module, name) in _ALLOWED):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of metadata")
        return super().find_class(module, name)


def _member(kind: Any, name: Any) -> Any:
    """Return a member of an enumeration, which Python before 3.11.4 pickles by `getattr`."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise pickle.UnpicklingError(f"it names {name!r} of {kind!r}, which is no part of metadata")
    return kind[name]
