"""Item `feed`: the share of training that waits for images, by `benchmarks/feed.py`."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import feed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of each loader."""
    images = 64 if at.toy else 2048
    asked = Namespace(
        device=at.device,
        images=images,
        workers=[0] if at.toy else [8],
        rounds=1 if at.toy else 2,
        model="test_resnet" if at.toy else "resnet18",
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        root = feed.sample_folder(folder / "photographs", images)
        for row in feed.rows(asked, root, folder):
            yield {"of": f"{asked.model}, {images} photographs an epoch", **row}
