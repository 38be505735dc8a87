import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from halfstep.train.data.pipeline.order import Order


def order(order_, epoch, start=0):
    return [job.indices for job in order_.jobs(epoch, start)]


@pytest.mark.parametrize("images", [16, 18])
def test_epochs_have_the_order_of_torchs_own_loader(images):
    generator = torch.Generator().manual_seed(5)
    plain = DataLoader(TensorDataset(torch.arange(images)), 4, shuffle=True, generator=generator)
    ours = Order(images, 4, seed=5)
    for epoch in (1, 2, 3):
        assert order(ours, epoch) == [tuple(batch.tolist()) for (batch,) in plain]


def test_order_is_the_seeds_and_the_epochs_alone():
    first = order(Order(16, 4, seed=0), 3)
    torch.manual_seed(99)
    assert order(Order(16, 4, seed=0), 3) == first
    assert sorted(sum(first, ())) == list(range(16))
    assert order(Order(16, 4, seed=0), 4) != first
    assert order(Order(16, 4, seed=1), 3) != first


def test_a_start_leaves_out_what_comes_before():
    whole = list(Order(17, 4, seed=0).jobs(2))
    assert list(Order(17, 4, seed=0).jobs(2, 3)) == whole[3:]
    assert [job.number for job in whole] == [0, 1, 2, 3]


def test_validation_keeps_the_order_of_the_split():
    before = torch.get_rng_state()
    assert order(Order(5, 2, seed=None), 0) == [(0, 1), (2, 3), (4,)]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("images", "batch_size", "seen"), [(9, 4, 8), (10, 4, 10), (1, 4, 1), (3, 1, 3), (8, 4, 8)]
)
def test_only_a_last_batch_of_a_single_image_is_left_out_of_training(images, batch_size, seen):
    jobs = order(Order(images, batch_size, seed=0), 1)
    assert sum(map(len, jobs)) == seen
    assert Order(images, batch_size, seed=0).batches == len(jobs)
    assert sum(map(len, order(Order(images, batch_size, None), 0))) == images


@pytest.mark.parametrize(
    ("images", "batch_size", "sizes"),
    [(18, 4, [4, 4, 4, 4]), (16, 4, [4, 4, 4, 4]), (3, 4, [3]), (5, 4, [4])],
)
def test_a_smaller_last_batch_is_left_out_unless_it_is_the_only_one(images, batch_size, sizes):
    ours = Order(images, batch_size, seed=0, drop_last=True)
    assert [len(batch) for batch in order(ours, 1)] == sizes
    assert ours.batches == len(sizes)
    # Of every image there is an epoch that has it.
    seen = {index for epoch in range(1, 9) for batch in order(ours, epoch) for index in batch}
    assert seen == set(range(images))
    validation = Order(images, batch_size, seed=None, drop_last=True)
    assert sum(len(batch) for batch in order(validation, 1)) == images
