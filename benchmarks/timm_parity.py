"""Claim: a model trained with halfstep is as accurate as one trained by a loop of timm's parts.

Trains ResNet-18 on Imagenette at 64 pixels for five epochs in fp32, with three seeds each: with
`halfstep train`, and with a loop of timm's dataset, loader, transforms, model, optimizer, scheduler
and meters with the same settings. The two do not share random numbers. So the means are compared,
relative to the spread over seeds. Takes about half an hour on two cores. The results are written
after each run, and after an interruption the same command continues.

    python benchmarks/timm_parity.py --data DIR    # the folder with train/ and val/
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, accuracy
from torch import nn

from halfstep.files import json_text, write_atomically
from halfstep.train.data.sources.source import spread
from halfstep.train.environment import describe

RESULTS = Path(__file__).parent / "results" / "timm_parity.json"
RESOLUTION = 64
BATCH = 64
LR = 0.05
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
WARMUP_EPOCHS = 1
CROP = 0.875
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def ours(given: argparse.Namespace, seed: int) -> float:
    """Return the final validation accuracy of `halfstep train`."""
    options = [
        f"data.root={given.data}",
        f"data.resolution={RESOLUTION}",
        f"data.workers={given.workers}",
        f"epochs={given.epochs}",
        f"batch_size={BATCH}",
        f"optimizer.lr={LR}",
        f"optimizer.momentum={MOMENTUM}",
        f"optimizer.weight_decay={WEIGHT_DECAY}",
        f"schedule.warmup_epochs={WARMUP_EPOCHS}",
        f"data.augment={{preset: crop-flip, val_crop: {CROP}}}",
    ]
    if given.limit:
        options += [
            f"data.{split}={{folder: {split}, limit: {given.limit}}}" for split in ("train", "val")
        ]
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "imagenette/resnet18", "--seed", str(seed), "--out", folder, "--quiet"]
        subprocess.run(
            [sys.executable, "-m", "halfstep", *command, "--options", *options], check=True
        )
        summary = json.loads((Path(folder) / "summary.json").read_text())
    return float(summary["final_accuracy"])


def timms(given: argparse.Namespace, seed: int) -> float:
    """Return the final validation accuracy of a training loop made of timm's parts."""
    torch.manual_seed(seed)
    train, val = (_loader(given, split) for split in ("train", "val"))
    model = timm.create_model("resnet18", num_classes=10).to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(
        model, opt="sgd", lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    scheduler, _ = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=given.epochs,
        warmup_epochs=WARMUP_EPOCHS,
        warmup_lr=LR / (WARMUP_EPOCHS * len(train) + 1),
        warmup_prefix=True,
        step_on_epochs=False,
        updates_per_epoch=len(train),
    )
    criterion = nn.CrossEntropyLoss()
    updates = 0
    for _ in range(given.epochs):
        model.train()
        for images, labels in train:
            loss = criterion(model(images.contiguous(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            scheduler.step_update(updates)
    top1 = AverageMeter()
    model.eval()
    with torch.no_grad():
        for images, labels in val:
            (hits,) = accuracy(model(images), labels, topk=(1,))
            top1.update(float(hits), len(labels))
    return float(top1.avg) / 100


def _loader(given: argparse.Namespace, split: str) -> Any:
    dataset = create_dataset("", root=str(given.data / split))
    if given.limit:
        samples = dataset.reader.samples
        dataset.reader.samples = [samples[i] for i in spread(len(samples), given.limit)]
    training = split == "train"
    return create_loader(
        dataset,
        (3, RESOLUTION, RESOLUTION),
        BATCH,
        is_training=training,
        use_prefetcher=False,
        scale=(0.08, 1.0),
        hflip=0.5,
        color_jitter=None,
        re_prob=0.0,
        interpolation="bilinear",
        crop_pct=CROP,
        mean=MEAN,
        std=STD,
        num_workers=given.workers,
        device=torch.device("cpu"),
    )


def _report(given: argparse.Namespace, found: dict[str, dict[str, float]]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "claim": "mean validation accuracy is within the spread over seeds of timm's",
        "model": "resnet18",
        "resolution": RESOLUTION,
        "epochs": given.epochs,
        "limit": given.limit,
        "environment": describe(torch.device("cpu")),
        "accuracy": found,
    }
    values = {side: list(each.values()) for side, each in found.items()}
    if all(len(each) == given.seeds for each in values.values()):
        means = {side: statistics.fmean(each) for side, each in values.items()}
        report["mean"] = means
        report["difference"] = means["halfstep"] - means["timm"]
        if given.seeds > 1:
            report["spread"] = {side: statistics.stdev(each) for side, each in values.items()}
    return report


def main() -> None:
    """Run the missing seeds, and write results/timm_parity.json after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with Imagenette's train/ and val/")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=None, help="images of each split; all of them")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.data is None:
        print("nothing measured: write --data DIR, the folder with Imagenette's train/ and val/")
        return
    found: dict[str, dict[str, float]] = {"halfstep": {}, "timm": {}}
    if given.out.is_file():
        before = json.loads(given.out.read_text())
        if (before["epochs"], before["limit"]) == (given.epochs, given.limit):
            found = before["accuracy"]
    for seed in range(given.seeds):
        for side, measure in (("halfstep", ours), ("timm", timms)):
            if str(seed) not in found[side]:
                found[side][str(seed)] = measure(given, seed)
                print(f"seed {seed} {side}: {found[side][str(seed)]:.2%}", flush=True)
                write_atomically(given.out, json_text(_report(given, found), indent=2) + "\n")
    print(json_text(_report(given, found), indent=2))


if __name__ == "__main__":
    main()
