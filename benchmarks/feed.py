"""Measures the share of training spent waiting for data: halfstep's feed, torchvision and timm.

    python benchmarks/feed.py --data DIR    # a folder with train/, which has a folder per class
    python benchmarks/feed.py --device cuda --workers 8

The same loop trains a ResNet-18 with each loader, on batches of 64 images of 64 pixels with random
crops and mirroring. The loaders take turns of one epoch each. A first epoch does not count; it
reads the files into memory and fills the caches. The results are the share of an epoch in which the
loop waits for the next batch or prepares it (copies and normalises it), and the speed of the loader
without a model. With 0 `workers`, the training process also loads the images.

Without --data, the images are JPEGs of 500 x 375 pixels, cut from scikit-learn's photographs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import quiet_machine
import timm
import timm.data
import torch
import torchvision
from loader import sample_jpegs
from torch.nn import functional
from torchvision.transforms import v2

from halfstep import Engine
from halfstep.feed import prefetch
from halfstep.train import data
from halfstep.train.config.data import FolderConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(__file__).parent / "results"
SIDE, BATCH = 64, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KEPT = ("none", "ram", "disk")

Epoch = "Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]"
"""Returns an iterator over the batches of the next epoch, normalised and on the device."""


def by_torchvision(root: Path, images: int, workers: int, device: torch.device) -> Epoch:
    """Return a loader of torchvision, as in its tutorials."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = torchvision.datasets.ImageFolder(root / "train", transform)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(dataset, spread(len(dataset), images)),
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pictures, labels in loader:
            yield pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    return epoch


def by_timm(root: Path, images: int, workers: int, device: torch.device) -> Epoch:
    """Return timm's loader with its prefetcher, as in timm's train.py."""
    dataset = timm.data.create_dataset("", root, split="train", is_training=True)
    chosen = torch.utils.data.Subset(dataset, spread(len(dataset), images))
    loader = timm.data.create_loader(
        TimmSubset(chosen, dataset),
        input_size=(3, SIDE, SIDE),
        batch_size=BATCH,
        is_training=True,
        color_jitter=0.0,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        device=device,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    return lambda: iter(loader)


class TimmSubset(torch.utils.data.Dataset):
    """A subset of a data set, with the attribute `transform` that timm sets."""

    def __init__(self, chosen: torch.utils.data.Subset, dataset: Any) -> None:
        self.chosen, self._dataset = chosen, dataset

    @property
    def transform(self) -> Any:
        """The transform of the whole data set."""
        return self._dataset.transform

    @transform.setter
    def transform(self, transform: Any) -> None:
        self._dataset.transform = transform

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Any:
        return self.chosen[index]


def by_halfstep(
    root: Path, images: int, workers: int, device: torch.device, *, kept: str, folder: Path
) -> Epoch:
    """Return the loader of `halfstep train`."""
    config = FolderConfig(
        name="folder",
        root=str(root),
        resolution=SIDE,
        workers=workers,
        augment={"preset": "crop-flip"},
        train={"folder": "train", "limit": images},
        val={"folder": "train", "limit": 1},
        cache_images=kept,
        cache_images_folder=str(folder),
    )
    loaded = data.load(config, batch_size=BATCH, seed=0, device=device)
    count = itertools.count(1)

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        number = next(count)
        for step, batch in enumerate(prefetch(loaded.train.epoch(number), device)):
            yield loaded.prepare(*batch, device=device, train=True, epoch=number, number=step)

    return epoch


def spread(count: int, images: int) -> list[int]:
    """Return the indices of `images` images, evenly spaced over `count`."""
    kept = min(count, images)
    return [index * count // kept for index in range(kept)]


def trained(epoch: Epoch, step: Callable[..., None], device: torch.device) -> dict[str, float]:
    """Train an epoch, and return the share of time spent waiting, and the images per second."""
    waited, images = 0.0, 0
    began = time.perf_counter()
    batches = epoch()
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        step(*batch)
        images += len(batch[1])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    return {"wait": waited / seconds, "images_per_second": images / seconds}


def stepper(name: str, device: torch.device) -> Callable[..., None]:
    """Return a function that takes a training step of a new model."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=1000).to(device)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with engine.autocast():
            loss = functional.cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        engine.step()

    return step


def spread_of(values: list[float]) -> dict[str, float]:
    """Return the median, the smallest and the largest value of a figure over rounds."""
    figures = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def sample_folder(folder: Path, images: int) -> Path:
    """Write JPEGs of two classes into `folder`, and return it."""
    for number, content in enumerate(sample_jpegs(images)):
        file = folder / "train" / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def rows(arguments: argparse.Namespace, root: Path, folder: Path) -> list[dict[str, Any]]:
    """Let all loaders take turns, and return a row for each."""
    device, images = torch.device(arguments.device), arguments.images
    loaders: dict[tuple[str, int], Epoch] = {}
    for workers in arguments.workers:
        given = root, images, workers, device
        loaders["torchvision", workers] = by_torchvision(*given)
        loaders["timm", workers] = by_timm(*given)
        for kept in KEPT:
            name = f"halfstep, cache_images={kept}"
            place = folder / f"kept-{workers}"
            loaders[name, workers] = by_halfstep(*given, kept=kept, folder=place)
    step = stepper(arguments.model, device)
    found: dict[tuple[str, int], list[dict[str, float]]] = {each: [] for each in loaders}
    for epoch in loaders.values():
        for batch in epoch():
            last = batch
    step(*last)
    for _ in range(arguments.rounds):
        for each, epoch in loaders.items():
            alone = trained(epoch, lambda *_: None, device)["images_per_second"]
            found[each].append({**trained(epoch, step, device), "loader_alone": alone})
    reference = {
        workers: [each["loader_alone"] for each in found["torchvision", workers]]
        for workers in arguments.workers
    }
    return [
        {
            "loader": name,
            "workers": workers,
            "share of an epoch that waits": spread_of([each["wait"] for each in measured]),
            "images/s in training": spread_of([each["images_per_second"] for each in measured]),
            "images/s of the loader alone": spread_of([each["loader_alone"] for each in measured]),
            "loader alone to torchvision's": spread_of(
                [
                    each["loader_alone"] / theirs
                    for each, theirs in zip(measured, reference[workers], strict=True)
                ]
            ),
        }
        for (name, workers), measured in found.items()
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with train/")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=448, help="of an epoch")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, default=RESULTS / "feed.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        root = arguments.data or sample_folder(folder / "photographs", arguments.images)
        files = [file.stat().st_size for file in (root / "train").rglob("*.*")]
        with quiet_machine.watched() as seen:
            found = rows(arguments, root, folder)
            gc.collect()  # ends the workers, so that their CPU time counts as our own
    document = {
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "timm": timm.__version__,
        "torchvision": torchvision.__version__,
        "model": arguments.model,
        "images of an epoch": arguments.images,
        "mean kilobytes of a file": round(statistics.mean(files) / 1e3, 1),
        "rounds": arguments.rounds,
        "rows": found,
    }
    quiet_machine.keep(arguments.out, document, seen)
    if arguments.out.resolve() == (RESULTS / "feed.json").resolve():
        docs_table.put("data.md", "feed", table(document))


def table(document: dict[str, Any]) -> list[str]:
    """Return the table of the docs: the share of waiting, and the speed of each loader alone."""
    lines = [
        (
            "| loader | workers | share of an epoch spent waiting for data "
            "| images/s of the loader | speed |"
        ),
        "| --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        wait, alone = row["share of an epoch that waits"], row["images/s of the loader alone"]
        ratio = row["loader alone to torchvision's"]
        lines.append(
            f"| {row['loader']} | {row['workers']} "
            f"| {wait['median']:.1%} ({wait['low']:.1%} to {wait['high']:.1%}) "
            f"| {alone['median']:,.0f} "
            f"| {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}) |"
        )
    return lines


if __name__ == "__main__":
    main()
