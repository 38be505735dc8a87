"""A config that trains in a second, and one finished run of it.

doctor watches no run here but where it is tested, as the watch is a third of the time of such runs.
"""

import numpy as np
import pytest
import torch
from PIL import Image

from halfstep import caller
from halfstep.cli.front_end import CommandLine
from halfstep.train.config.files import load
from halfstep.train.loop.loop import train
from halfstep.train.store import snapshot
from halfstep.train.store.checkpoint import Checkpoint

TINY = """
epochs: 2
batch_size: 256
drop_last: false
log_every: 2
device: cpu
doctor: false
data: {resolution: 8}
model: {name: "timm:resnet18", args: {layers: [1, 1, 0, 0], channels: [8, 16, 16, 16]}}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: cosine}
"""


@pytest.fixture(autouse=True)
def command_line():
    """Word errors for the command line, whose words the tests quote; `halfstep.train` does not."""
    with caller.through(CommandLine()):
        yield


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    file.write_text(TINY)
    return file


@pytest.fixture(scope="session")
def tiny(tiny_file):
    """Load the small config with overrides, as on the command line."""
    return lambda *options, **flags: load(str(tiny_file), options, flags)


@pytest.fixture(scope="session")
def finished_run(tiny, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "finished"
    train(tiny(), run, tag="small", quiet=True)
    return run


PICTURES = """
epochs: 3
batch_size: 4
drop_last: false
accumulate: 2
clip_norm: 1.0
log_every: 3
device: cpu
doctor: false
average: {decay: 0.9}
checkpoints: {every_steps: 2, keep: 3}
data:
  name: folder
  root: ROOT
  resolution: 8
  workers: 0
  augment: {preset: mixed}
model: {name: "timm:resnet18", args: {layers: [1, 1, 0, 0], channels: [8, 8, 8, 8], drop_rate: 0.2}}
optimizer: {name: adamw, lr: 0.01}
schedule: {name: one-cycle}
"""


@pytest.fixture(scope="session")
def pictures_file(tmp_path_factory):
    """A config of 22 tiny pictures with all that is random: augmentation, mixing, dropout, order.

    An epoch has six batches, the last of them smaller, and three optimizer steps.
    """
    root = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for split, count in (("train", 11), ("val", 3)):
        for shade, name in ((60, "dark"), (180, "light")):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(shade - 40, shade + 40, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{index}.png")
    file = root / "pictures.yaml"
    file.write_text(PICTURES.replace("ROOT", str(root)))
    return file


@pytest.fixture(scope="session")
def pictures(pictures_file):
    """Load the config of pictures with overrides, as on the command line."""
    return lambda *options, **flags: load(str(pictures_file), options, flags)


@pytest.fixture(scope="session")
def pictures_run(pictures, tmp_path_factory):
    """A finished run over the tiny pictures: one epoch, under a recipe with averaged weights."""
    run = tmp_path_factory.mktemp("runs") / "pictures"
    options = ("data.workers=0", "epochs=1", "average={decay: 0.5}", "recipe=bf16")
    train(pictures(*options), run, tag="small", quiet=True)
    return run


@pytest.fixture
def example():
    """Make a checkpoint of next to nothing, with some fields of one's own."""

    def made(**changed):
        state = {
            "model": {"weight": torch.arange(4.0)},
            "averaged": None,
            "engine": {"steps": 3, "scale": 2.0},
            "schedule": {},
            "epoch": 1,
            "batch": 2,
            "step": 3,
            "validated": True,
            "loss": 0.5,
            "accuracy": 0.75,
            "classes": ("cat", "dog"),
            "preprocessing": {"image_shape": [1, 8, 8], "mean": [0.5], "std": [0.25]},
            "rng": {"python": [3, [1, 2], None]},
            "progress": {"best": None},
            "config": {"seed": 0},
        }
        return Checkpoint(**{**state, **changed})

    return made


@pytest.fixture
def in_background(monkeypatch):
    """Write checkpoints in the background however small they are."""
    monkeypatch.setattr(snapshot, "LEAST_BYTES", 0)
