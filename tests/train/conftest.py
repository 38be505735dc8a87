"""A config that trains in a second, and one finished run of it."""

import pytest
import torch

from halfstep.train.config_files import load
from halfstep.train.loop import train

TINY = """
epochs: 2
batch_size: 256
log_every: 2
device: cpu
data: {resolution: 8}
model: {name: "timm:resnet18", args: {layers: [1, 1, 1, 1], channels: [8, 8, 8, 8]}}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: cosine}
"""


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
