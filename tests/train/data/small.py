"""Tiny images, and a way to load them, for the tests of this folder."""

import io

import numpy as np
import torch
from PIL import Image
from pydantic import TypeAdapter

from halfstep.train import data
from halfstep.train.config.data import DataConfig

CPU = torch.device("cpu")
_CONFIG = TypeAdapter(DataConfig)


def encoded(number, size=12, kind="PNG"):
    """Return the bytes of an image that is unlike that of any other number."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def section(**fields):
    """Check the fields of a config's data section."""
    return _CONFIG.validate_python({"workers": 0, "resolution": 8, **fields})


def load(batch_size=4, seed=0, **fields):
    """Load a data section."""
    return data.load(section(**fields), batch_size=batch_size, seed=seed, device=CPU)


def equal(first, second):
    """Return whether two lists of batches are bitwise equal."""
    return len(first) == len(second) and all(
        torch.equal(one, other)
        for left, right in zip(first, second, strict=True)
        for one, other in zip(left, right, strict=True)
    )


def labels_of(batches):
    """Return all labels of some batches."""
    return torch.cat([labels for _, labels in batches]).tolist()
