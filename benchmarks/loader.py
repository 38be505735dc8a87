"""Measures images per second and core, from a JPEG to a uint8 image of 224 pixels in a batch.

halfstep's `read_image` and `transforms` are compared with Pillow and torchvision's v2 transforms,
and with OpenCV and simplejpeg if they are installed. All ways take turns on the same JPEGs, in one
process and one thread. Times are CPU times, so that other programs do not count. Each ratio is
relative to Pillow + v2 in the same round.

    python benchmarks/loader.py
    python benchmarks/loader.py --folder path/to/jpegs

Without --folder, the JPEGs are cut from the two photographs that come with scikit-learn. Before the
measurement, the pixels are compared: halfstep's must be equal to those of v2 on tensors, and within
one level of Pillow's. The difference of OpenCV is only reported, because OpenCV has no antialiased
resizing.
"""

from __future__ import annotations

import argparse
import io
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import PIL
import quiet_machine
import torch
import torchvision
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2

from halfstep.feed.decode import read_image
from halfstep.train.config.augment import AugmentConfig
from halfstep.train.data.pipeline import transforms

SIDE = 224
SHORTER_EDGE = 256
REFERENCE = "Pillow + v2"
RESULTS = Path(__file__).parent / "results"

Load = Callable[[bytes], torch.Tensor]
"""Turns an encoded image into a uint8 tensor of shape (3, 224, 224)."""


@dataclass(frozen=True)
class Row:
    """The speed of one way of loading, relative to Pillow + v2 in the same rounds."""

    task: str
    way: str
    images_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    largest_difference: int


def with_halfstep(task: str) -> Load:
    """Return the loading function of halfstep's workers."""
    transform = transforms.build(AugmentConfig(preset="crop-flip"), SIDE, train=task == "train")
    return lambda encoded: transform(read_image(encoded))


def by_v2(task: str) -> list[v2.Transform]:
    """Return torchvision's v2 transforms, as in its tutorials."""
    if task == "train":
        return [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    return [v2.Resize(SHORTER_EDGE, antialias=True), v2.CenterCrop(SIDE)]


def with_tensors(task: str) -> Load:
    """Return a function with v2 transforms of tensors; halfstep must give the same pixels."""
    transform = v2.Compose(by_v2(task))

    def load(encoded: bytes) -> torch.Tensor:
        content = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        return transform(torchvision.io.decode_jpeg(content, mode="RGB"))

    return load


def with_pillow(task: str) -> Load:
    """Return a function with v2 transforms of Pillow's images: the reference of all ratios."""
    transform = v2.Compose([*by_v2(task), v2.PILToTensor()])
    return lambda encoded: transform(Image.open(io.BytesIO(encoded)).convert("RGB"))


def with_simplejpeg(task: str) -> Load:
    """Return a function that decodes with simplejpeg (libjpeg-turbo), then uses our transforms."""
    import simplejpeg

    transform = transforms.build(AugmentConfig(preset="crop-flip"), SIDE, train=task == "train")

    def load(encoded: bytes) -> torch.Tensor:
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(encoded, "RGB"))
        return transform(pixels.permute(2, 0, 1))

    return load


def with_torchvision(task: str) -> Load:
    """Return a function with torchvision's decoder (deprecated since 0.29) and our transforms."""
    transform = transforms.build(AugmentConfig(preset="crop-flip"), SIDE, train=task == "train")

    def load(encoded: bytes) -> torch.Tensor:
        content = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        return transform(torchvision.io.decode_jpeg(content, mode="RGB"))

    return load


def with_pillows_pixels(task: str) -> Load:
    """Return a function with Pillow and our transforms: halfstep without torchcodec."""
    transform = transforms.build(AugmentConfig(preset="crop-flip"), SIDE, train=task == "train")
    return lambda encoded: transform(
        v2.functional.pil_to_tensor(Image.open(io.BytesIO(encoded)).convert("RGB"))
    )


def with_opencv(task: str) -> Load:
    """Return a function with only OpenCV, which resizes by area, its closest to antialiasing."""
    import cv2

    cv2.setNumThreads(1)
    crop = v2.RandomResizedCrop(SIDE, antialias=True)

    def load(encoded: bytes) -> torch.Tensor:
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
        height, width = pixels.shape[:2]
        if task == "train":
            box = crop.make_params([torch.empty(3, height, width, dtype=torch.uint8)])
            bottom, right = box["top"] + box["height"], box["left"] + box["width"]
            part = pixels[box["top"] : bottom, box["left"] : right]
            shrinks = part.shape[0] > SIDE
            method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
            pixels = cv2.resize(part, (SIDE, SIDE), interpolation=method)
            if torch.rand(1) < 0.5:
                pixels = cv2.flip(pixels, 1)
        else:
            scale = SHORTER_EDGE / min(height, width)
            size = int(width * scale), int(height * scale)
            pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
            top, left = (round((edge - SIDE) / 2) for edge in pixels.shape[:2])
            pixels = pixels[top : top + SIDE, left : left + SIDE]
        return torch.from_numpy(pixels).permute(2, 0, 1)

    return load


def ways(task: str) -> dict[str, Load]:
    """Return the loading functions whose libraries are installed, by name."""
    found = {
        REFERENCE: with_pillow(task),
        "halfstep": with_halfstep(task),
        "halfstep, by Pillow": with_pillows_pixels(task),
        "torchvision + halfstep": with_torchvision(task),
    }
    if find_spec("cv2"):
        found["OpenCV"] = with_opencv(task)
    if find_spec("simplejpeg"):
        found["simplejpeg + halfstep"] = with_simplejpeg(task)
    return found


def sample_jpegs(count: int) -> list[bytes]:
    """Cut JPEGs of 500x375 pixels and about 65 KB from scikit-learn's photographs."""
    photographs = [Image.fromarray(each) for each in load_sample_images().images]
    encoded = []
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        left = 13 * number % (photograph.width - 500)
        top = 7 * number % (photograph.height - 375)
        file = io.BytesIO()
        part = photograph.crop((left, top, left + 500, top + 375))
        part.save(file, "JPEG", quality=(89, 96)[number % len(photographs)])
        encoded.append(file.getvalue())
    return encoded


def folder_jpegs(folder: Path, count: int) -> list[bytes]:
    """Read up to `count` JPEGs from a folder, evenly spaced in the sorted list of files."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg"})
    if not files:
        raise SystemExit(f"{folder} holds no .jpg")
    kept = min(count, len(files))
    return [files[index * len(files) // kept].read_bytes() for index in range(kept)]


def load_all(load: Load, jpegs: Sequence[bytes], batch: torch.Tensor, seed: int) -> float:
    """Load all images into a batch (N, C, H, W), and return the CPU seconds."""
    torch.manual_seed(seed)
    start = time.process_time()
    for index, encoded in enumerate(jpegs):
        batch[index].copy_(load(encoded))
    return time.process_time() - start


def measure(task: str, jpegs: Sequence[bytes], rounds: int) -> list[Row]:
    """Compare the pixels, then let all ways take turns, and return a row for each."""
    batch = torch.empty(len(jpegs), 3, SIDE, SIDE, dtype=torch.uint8)
    fill = partial(load_all, jpegs=jpegs, batch=batch)
    loads = ways(task)
    fill(with_tensors(task), seed=0)
    on_tensors = batch.clone()
    fill(loads[REFERENCE], seed=0)
    by_pillow = batch.int()
    differences = {}
    for way, load in loads.items():
        fill(load, seed=0)
        differences[way] = int((batch.int() - by_pillow).abs().max())
        if way == "halfstep":
            assert torch.equal(batch, on_tensors), "other pixels than v2 on tensors"
            assert differences[way] <= 1, f"{differences[way]} levels from Pillow's pixels"
    seconds: dict[str, list[float]] = {way: [] for way in loads}
    for number in range(rounds):
        for way, load in loads.items():
            seconds[way].append(fill(load, seed=number))
    rows = []
    for way, taken in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(seconds[REFERENCE], taken, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        speed = round(len(jpegs) / statistics.median(taken), 1)
        spread = round(middle, 2), round(low, 2), round(high, 2)
        rows.append(Row(task, way, speed, *spread, rounds, differences[way]))
    return rows


def environment() -> dict[str, object]:
    """Return the facts about the machine on which the figures depend."""
    versions = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
    }
    for module in ("torchcodec", "cv2", "simplejpeg"):
        if find_spec(module):
            versions[module] = __import__(module).__version__
    return {
        **versions,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=32, help="JPEGs in a round")
    parser.add_argument("--folder", type=Path, help="JPEGs of your own")
    parser.add_argument("--name", help="appended to the name of the results file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, count = arguments.folder, arguments.count
    jpegs = folder_jpegs(folder, count) if folder else sample_jpegs(count)
    pictures = {
        "source": "a folder" if folder else "scikit-learn's photographs",
        "count": len(jpegs),
        "mean_kilobytes": round(statistics.mean(map(len, jpegs)) / 1e3, 1),
    }
    print(f"{pictures['count']} JPEGs of {pictures['mean_kilobytes']} KB on average")
    print(f"{'task':12}{'way':24}{'images/s':>9}{'x':>7}  quartiles")
    rows = [row for task in ("train", "validate") for row in measure(task, jpegs, arguments.rounds)]
    for row in rows:
        print(
            f"{row.task:12}{row.way:24}{row.images_per_second:9.0f}{row.ratio:7.2f}"
            f"  {row.ratio_low:.2f} to {row.ratio_high:.2f}, at most {row.largest_difference} "
            "levels from Pillow's pixels"
        )
    stem = "loader" + (f"_{arguments.name}" if arguments.name else "")
    path = RESULTS / f"{stem}.json"
    document = {
        "environment": environment(),
        "pictures": pictures,
        "rows": [asdict(row) for row in rows],
    }
    quiet_machine.keep(path, document)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
