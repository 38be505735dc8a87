"""How much of training waits for data: halfstep's feed beside torchvision's and timm's loaders.

    python benchmarks/feed.py --data DIR    # a folder with train/, in it a folder for each class
    python benchmarks/feed.py --device cuda --workers 8

A ResNet-18 trains on batches of 64 images of 64 pixels, cropped at random and mirrored, by the same
loop over each loader; loaders take turns, an epoch each, after an epoch that does not count, which
reads the files into memory and fills the caches. Told are the share of an epoch in which the loop
waits for the next batch or makes it ready (copies it, normalises it), and what the loader gives
without a model. With `workers` 0 the process that trains loads, too.

Without --data the images are JPEGs of 500 x 375 pixels cut from scikit-learn's photographs.
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
"""Batches on the device, normalised, of one epoch after the other."""


def by_torchvision(root: Path, images: int, workers: int, device: torch.device) -> Epoch:
    """What every tutorial does."""
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
    """Timm's loader with its prefetcher, as its train.py makes it."""
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
    """Some of the images of a data set whose transform timm sets."""

    def __init__(self, chosen: torch.utils.data.Subset, dataset: Any) -> None:
        self.chosen, self._dataset = chosen, dataset

    @property
    def transform(self) -> Any:
        """What timm does to an image."""
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
    """What `halfstep train` does."""
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
    """Return the indices of so many images at even distances."""
    kept = min(count, images)
    return [index * count // kept for index in range(kept)]


def trained(epoch: Epoch, step: Callable[..., None], device: torch.device) -> dict[str, float]:
    """Train an epoch, and return its seconds and those in which it waited for a batch."""
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
    """Return a training step of a model; each loader has its own."""
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
    """Return the median, the least and the most of a figure over rounds."""
    figures = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def sample_folder(folder: Path, images: int) -> Path:
    """Write JPEGs of two classes."""
    for number, content in enumerate(sample_jpegs(images)):
        file = folder / "train" / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def rows(arguments: argparse.Namespace, root: Path, folder: Path) -> list[dict[str, Any]]:
    """Let all loaders take turns."""
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
    """Measure, print and keep."""
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
            gc.collect()  # ends the workers, whose time counts as ours once they have ended
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
    """Return the docs' table: how much of an epoch waits, and what a loader gives by itself."""
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
