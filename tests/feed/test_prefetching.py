from collections import OrderedDict, defaultdict
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch

from halfstep.feed import prefetch
from halfstep.feed.prefetching import ahead, each_tensor


class Batch(NamedTuple):
    images: torch.Tensor
    count: int


def test_a_batch_is_sent_before_the_one_ahead_of_it_is_received():
    told = []

    def batches():
        for number in range(3):
            told.append(f"load {number}")
            yield number

    def send(number):
        told.append(f"send {number}")
        return number

    for number in ahead(batches(), send, lambda number: number):
        told += [f"compute {number}"]
    assert told == [
        *("load 0", "send 0", "load 1", "send 1", "compute 0"),
        *("load 2", "send 2", "compute 1", "compute 2"),
    ]
    assert list(ahead([], send, send)) == []


@pytest.mark.parametrize(
    "batch",
    [
        defaultdict(list, images=torch.ones(2), names=["one"]),
        MappingProxyType({"images": torch.ones(2), "names": ["one"]}),
        OrderedDict(images=torch.ones(2), names=("one",)),
    ],
)
def test_a_mapping_is_moved_to_one_of_its_kind_and_stays_as_it_is(batch):
    moved = each_tensor(batch, lambda tensor: tensor + 1)
    assert type(moved) is type(batch)
    assert moved["images"].tolist() == [2, 2]
    assert moved["names"] == batch["names"]
    assert batch["images"].tolist() == [1, 1]


def test_on_a_cpu_batches_are_those_of_the_loader():
    batches = [object()]
    assert prefetch(batches, "cpu") is batches


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_are_copied_ahead_and_bitwise_the_same():
    torch.manual_seed(0)
    batches = [
        Batch(torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8), number)
        for number in range(20)
    ]
    weight = torch.randn(3 * 64 * 64, 1000, device="cuda")
    seen = 0
    for before, after in zip(batches, prefetch(batches, "cuda"), strict=True):
        assert after.images.device.type == "cuda"
        for _ in range(10):
            after.images.flatten(1).float() @ weight  # work that the next copy runs beside
        assert after.count == before.count
        assert torch.equal(after.images.cpu(), before.images)
        seen += 1
    assert seen == 20
    (moved,) = prefetch([{"images": [torch.ones(2)], "name": "one"}], "cuda")
    assert moved["images"][0].is_cuda
    assert moved["name"] == "one"
