"""Tiny data sets of noise: images in classes, and images with boxes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path


def write_images(directory: Path) -> None:
    """Write images in six classes, for training and validation."""
    generator = np.random.default_rng(0)
    for split in ("train", "val", "validation"):
        for kind in "abcdef":
            place = directory / split / kind
            place.mkdir(parents=True)
            for number in range(8):
                _write(place / f"{number}.png", generator, 36)


def write_boxes(directory: Path, *, images: int = 8, pixels: int = 64) -> None:
    """Write images with a box each, in COCO's layout."""
    generator = np.random.default_rng(0)
    annotations = directory / "annotations"
    annotations.mkdir(parents=True)
    for split in ("train2017", "val2017"):
        place = directory / split
        place.mkdir()
        listed, boxes = [], []
        for number in range(1, images + 1):
            _write(place / f"{number}.png", generator, pixels)
            listed.append(
                {"id": number, "file_name": f"{number}.png", "width": pixels, "height": pixels}
            )
            left, top = (float(each) for each in generator.integers(2, pixels // 3, 2))
            side = pixels / 2
            right, bottom = left + side, top + side
            boxes.append(
                {
                    "id": number,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [left, top, side, side],
                    "area": side * side,
                    "iscrowd": 0,
                    "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                }
            )
        record = {
            "images": listed,
            "annotations": boxes,
            "categories": [{"id": 1, "name": "noise"}],
        }
        (annotations / f"instances_{split}.json").write_text(json.dumps(record))


def _write(path: Path, generator: np.random.Generator, pixels: int) -> None:
    noise = generator.integers(0, 255, (pixels, pixels, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
