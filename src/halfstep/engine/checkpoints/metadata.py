"""Checks that the `.metadata` file of `torch.distributed.checkpoint` contains only plain data.

torch unpickles this file, and a pickle can name any function to call. Here it may name only classes
and functions that describe tensors and files. So loading a checkpoint runs no code of its author.
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
    """Refuse a metadata file that names anything but descriptions of tensors and files.

    Args:
        file: A `.metadata` file.

    Raises:
        ValueError: If the file is damaged or names anything else.
        OSError: If the file cannot be read.
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
    """Return a member of an enumeration; Python before 3.11.4 pickles members with `getattr`."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise pickle.UnpicklingError(f"it names {name!r} of {kind!r}, which is no part of metadata")
    return kind[name]
