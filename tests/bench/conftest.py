"""A config that is measured in a second, and outcomes of figures that were never measured."""

import io

import pytest
from rich.console import Console

from halfstep.bench.marks import PARTS
from halfstep.bench.outcome import Subject
from halfstep.train.config.files import load

TINY = """
epochs: 2
batch_size: 256
drop_last: false
device: cpu
tracking: []
data: {resolution: 8}
model: {name: "timm:resnet18", args: {layers: [1, 1, 1, 1], channels: [8, 8, 8, 8]}}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: one-cycle}
"""


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    file.write_text(TINY)
    return file


@pytest.fixture(scope="session")
def tiny(tiny_file):
    """Load the small config with overrides, as on the command line."""
    return lambda *options, **flags: load(str(tiny_file), options, flags)


@pytest.fixture
def console():
    """A console that remembers: what it was told is `console.file.getvalue()`."""
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def subject():
    environment = {"torch": "2.15.0", "device_name": "Imaginary GPU", "processors": 4}
    return Subject("loader", "digits", ("batch_size=8",), "cuda:0", environment)


@pytest.fixture
def make_step():
    """Return a step with a part of some length each, 1 ms unless said."""
    return lambda **seconds: {part: seconds.get(part, 0.001) for part in PARTS}
