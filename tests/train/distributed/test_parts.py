"""The parts that processes take make up the batches of one: nothing lost, nothing twice."""

import io
import tarfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halfstep.train import data
from halfstep.train.config.files import load
from halfstep.train.data.pipeline.order import BatchShare, Order

CPU = torch.device("cpu")
SHARDS, SAMPLES = 4, 8


@given(
    images=st.integers(1, 200),
    batch=st.integers(2, 40),
    size=st.integers(1, 8),
    least=st.integers(1, 2),
)
def test_parts_make_up_the_joined_batch(images, batch, size, least):
    whole = list(Order(images, batch * size, seed=3).jobs(2))
    orders = [Order(images, batch * size, 3, BatchShare(rank, size, least)) for rank in range(size)]
    parts = [list(order.jobs(2)) for order in orders]
    for place, job in enumerate(whole):
        busy = [o for o in range(size) if not orders[o].idle(job.number)]
        together = [index for rank in busy for index in parts[rank][place].indices]
        assert tuple(together) == job.indices
        sizes = [len(parts[rank][place].indices) for rank in busy]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(least, len(job.indices))
        assert all(parts[rank][place].indices for rank in range(size)), "company is given images"


@given(images=st.integers(1, 60), batch=st.integers(1, 9), size=st.integers(1, 5))
def test_validation_looks_at_every_image_once(images, batch, size):
    orders = [Order(images, batch * size, None, BatchShare(rank, size)) for rank in range(size)]
    seen = [index for order in orders for job in order.jobs(0) for index in job.indices]
    assert sorted(seen) == list(range(images))


@pytest.fixture
def shards(tmp_path):
    for split, count in (("train", SHARDS), ("val", 1)):
        for shard in range(count):
            with tarfile.open(tmp_path / f"{split}-{shard}.tar", "w") as tar:
                for sample in range(SAMPLES):
                    number = shard * SAMPLES + sample
                    picture = io.BytesIO()
                    Image.new("RGB", (8, 8), (number, 0, 0)).save(picture, "png")
                    for kind, content in (
                        ("png", picture.getvalue()),
                        ("cls", str(number).encode()),
                    ):
                        member = tarfile.TarInfo(f"{sample:04}.{kind}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
    file = tmp_path / "shards.yaml"
    file.write_text(f"""
base: digits
data: {{name: webdataset, root: "{tmp_path}", classes: 99, resolution: 8, workers: 0,
        cache: "{tmp_path}", train: {{urls: "train-*.tar"}}, val: {{urls: "val-*.tar"}}}}
""")
    return file


def opened(shards, batch, part):
    config = load(str(shards)).data
    return data.load(config, batch_size=batch, seed=0, device=CPU, part=part)


def labels(batches):
    return [labels.tolist() for _, labels in batches]


@pytest.mark.parametrize("batch", [2, 5])
def test_shards_are_split_over_processes(shards, batch):
    whole = labels(opened(shards, 2 * batch, BatchShare()).train.epoch(1))
    ours = [opened(shards, batch, BatchShare(rank, 2)) for rank in range(2)]
    parts = [labels(each.train.epoch(1)) for each in ours]
    assert [sorted(one + two) for one, two in zip(*parts, strict=True)] == list(map(sorted, whole))
    tails = [labels(each.train.epoch(1, start=2)) for each in ours]
    assert tails == [part[2:] for part in parts]
    val = [label for each in ours for batch in labels(each.val.epoch()) for label in batch]
    assert sorted(val) == list(range(SAMPLES))
