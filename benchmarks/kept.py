"""Compares halfstep's own implementations with libraries: folds, image mixing, data sets, power.

    python benchmarks/kept.py

Folds: random data sets with copies of images are split into five folds, by `StratifiedKFold` over
the distinct images, as in halfstep, and by `StratifiedGroupKFold` over all rows. A fold should have
a fifth of the distinct images of each class. The results are the largest difference to a fifth, and
the time.

Mixing and erasing: the CPU time for a batch of 32 images of 128 pixels, and whether the result
depends only on a seeded generator for the batch, and not on other draws from torch's generator.

Sets: the milliseconds for a batch of 128 images of CIFAR-10 as one uint8 tensor, from halfstep's
array and from timm's `create_dataset("torch/cifar10")`. The check of the files by torchvision is
switched off, because copies with other pixels fail it. Needs cifar-10-batches-py in
$HALFSTEP_TEST_DATA.

Power: the largest difference between the power of a paired t test in halfstep and in statsmodels,
over effects of 0.1 to 3 standard deviations and 2 to 100 pairs, and the size of statsmodels with
the packages that it needs, in MB. Needs statsmodels.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import quiet_machine
import sklearn
import timm
import torch
import torchvision
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2

from halfstep.statistics import power
from halfstep.train.data.pipeline import batch_augment
from halfstep.train.data.sources import cifar_files

RESULTS = Path(__file__).parent / "results" / "kept.json"
FOLDS, SETS, CLASSES = 5, 10, 20
Batch = Callable[[], torch.Tensor]


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the class and the image of each row; a fifth of the images occurs 2 to 8 times."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(20, 120, CLASSES)
    of_image = np.repeat(np.arange(CLASSES), counts)
    copies = np.where(chance.random(len(of_image)) < 0.2, chance.integers(2, 9, len(of_image)), 1)
    return np.repeat(of_image, copies), np.repeat(np.arange(len(of_image)), copies)


def farthest(labels: np.ndarray, images: np.ndarray, valid: list[np.ndarray]) -> float:
    """Return the largest difference between the share of a class in a fold and 1 / FOLDS."""
    of_image = labels[np.unique(images, return_index=True)[1]]
    totals = np.bincount(of_image, minlength=CLASSES)
    shares = [np.bincount(of_image[np.unique(images[rows])], minlength=CLASSES) for rows in valid]
    return float(max(np.abs(share / totals - 1 / FOLDS).max() for share in shares))


def folds() -> dict[str, dict[str, float]]:
    """Split all data sets in both ways."""
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
    """Time a function of a batch, and check whether other random draws change its result."""
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
    """Mix and erase a batch, with halfstep and with the libraries."""
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


def sets() -> dict[str, float] | None:
    """Time batches of CIFAR-10 in both ways; None if the data set is not available."""
    root = Path(os.environ.get("HALFSTEP_TEST_DATA", ""))
    if not (root / "cifar-10-batches-py").is_dir():
        return None
    held = cifar_files.read(root, "cifar10", train=False)[0]
    with patch("torchvision.datasets.cifar.check_integrity", return_value=True):
        one_by_one = timm.data.create_dataset("torch/cifar10", str(root), split="test")
    rows = torch.randperm(len(held), generator=torch.Generator().manual_seed(0))[:128]

    def by_timm() -> torch.Tensor:
        images = [np.asarray(one_by_one[row][0]) for row in rows.tolist()]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)

    ways = {"one array, halfstep": lambda: held[rows], "create_dataset, timm": by_timm}
    assert torch.equal(*(way() for way in ways.values()))
    return {way: measured(run)["median_ms"] for way, run in ways.items()}


def of_power() -> dict[str, float] | None:
    """Compare the power of a paired t test with statsmodels; None if it is not installed."""
    if importlib.util.find_spec("statsmodels") is None:
        return None
    from statsmodels.stats.power import TTestPower

    theirs = TTestPower()
    differences = [
        abs(power(effect, 1.0, pairs) - theirs.power(effect, pairs, 0.05))
        for effect in (0.1, 0.3, 1.0, 3.0)
        for pairs in (2, 3, 5, 10, 30, 100)
    ]
    brought = [
        file.locate().stat().st_size
        for name in ("statsmodels", "patsy", "pandas")
        for file in importlib.metadata.files(name) or ()
        if file.locate().exists()
    ]
    return {"largest_difference": max(differences), "brought_mb": round(sum(brought) / 1e6, 1)}


def main() -> None:
    """Measure, print and write the results."""
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
        "sets": sets(),
        "power": of_power(),
    }
    quiet_machine.keep(RESULTS, document)


if __name__ == "__main__":
    main()
