"""What halfstep does by itself beside the library that could do it: folds, mixing and erasing.

    python benchmarks/kept.py

Folds: sets of drawn classes and copies are split into five by `StratifiedKFold` over the distinct
images, as halfstep does, and by `StratifiedGroupKFold` over all rows. Told is the largest distance
between a class's share of its distinct images in a fold and a fifth, and the time.

Mixing and erasing: time of the processor for a batch of 32 images of 128 pixels, and whether a
seeded generator of the batch's own decides the result whatever else has drawn from torch's.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sklearn
import timm
import torch
import torchvision
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

from halfstep.train.data.pipeline import batch_augment

RESULTS = Path(__file__).parent / "results" / "kept.json"
FOLDS, SETS, CLASSES = 5, 10, 20
Batch = Callable[[], torch.Tensor]


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the class and the image of each row: a fifth of the images 2 to 8 times."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(20, 120, CLASSES)
    of_image = np.repeat(np.arange(CLASSES), counts)
    copies = np.where(chance.random(len(of_image)) < 0.2, chance.integers(2, 9, len(of_image)), 1)
    return np.repeat(of_image, copies), np.repeat(np.arange(len(of_image)), copies)


def farthest(labels: np.ndarray, images: np.ndarray, valid: list[np.ndarray]) -> float:
    """Return the largest distance of a class's share of a fold from an equal one."""
    of_image = labels[np.unique(images, return_index=True)[1]]
    totals = np.bincount(of_image, minlength=CLASSES)
    shares = [np.bincount(of_image[np.unique(images[rows])], minlength=CLASSES) for rows in valid]
    return float(max(np.abs(share / totals - 1 / FOLDS).max() for share in shares))


def folds() -> dict[str, dict[str, float]]:
    """Split all sets both ways."""
    found: dict[str, list[tuple[float, float]]] = {
        "distinct images": [],
        "StratifiedGroupKFold": [],
    }
    for seed in range(SETS):
        labels, images = drawn(seed)
        of_image = labels[np.unique(images, return_index=True)[1]]
        start = time.process_time()
        ours = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        chosen = [held for _, held in ours.split(of_image, of_image)]
        valid = [np.flatnonzero(np.isin(images, held)) for held in chosen]
        seconds = time.process_time() - start
        found["distinct images"].append((farthest(labels, images, valid), seconds))
        start = time.process_time()
        theirs = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
        valid = [held for _, held in theirs.split(labels, labels, images)]
        seconds = time.process_time() - start
        found["StratifiedGroupKFold"].append((farthest(labels, images, valid), seconds))
    return {
        way: {
            "largest_distance": round(max(far for far, _ in rows), 4),
            "median_seconds": round(statistics.median(each for _, each in rows), 4),
        }
        for way, rows in found.items()
    }


def measured(run: Batch) -> dict[str, object]:
    """Time a way of changing a batch, and see whether foreign draws change it."""
    run()
    seconds = []
    for _ in range(15):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    torch.manual_seed(0)
    first = run()
    torch.rand(7)
    return {
        "median_ms": round(1e3 * statistics.median(seconds), 2),
        "own_generator": torch.equal(first, run()),
    }


def batches() -> dict[str, dict[str, object]]:
    """Mix and erase a batch both ways."""
    images, labels = torch.rand(32, 3, 128, 128), torch.arange(32) % 10
    chances = torch.nn.functional.one_hot(labels, 10).float()

    def own() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    ways: dict[str, Batch] = {
        "mixup, halfstep": lambda: batch_augment.mixup(images, chances, 0.3)[0],
        "mixup, v2.MixUp": lambda: v2.MixUp(alpha=0.2, num_classes=10)(images, labels)[0],
        "cutmix, halfstep": lambda: batch_augment.cutmix(images, chances, 0.3, own())[0],
        "cutmix, v2.CutMix": lambda: v2.CutMix(num_classes=10)(images, labels)[0],
        "erasing, halfstep": lambda: batch_augment.erase(images, 1.0, own()),
        "erasing, timm": lambda: RandomErasing(1.0, device="cpu")(images.clone()),
    }
    return {way: measured(run) for way, run in ways.items()}


def main() -> None:
    """Measure, print and keep."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    document = {
        "environment": {
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "folds": folds(),
        "batches": batches(),
    }
    print(json.dumps(document, indent=2))
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
