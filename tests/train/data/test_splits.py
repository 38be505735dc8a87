import pytest
import torch
from torch.utils.data import TensorDataset

from halfstep.train.data.splits import Splits, loaders


def numbered(count):
    return TensorDataset(torch.zeros(count, 1, 2, 3), torch.arange(count))


def order(loader):
    return torch.cat([labels for _, labels in loader]).tolist()


def load(count, batch_size=4, seed=0, workers=0):
    splits = Splits(numbered(count), numbered(3), ("a",))
    return loaders(splits, batch_size=batch_size, seed=seed, workers=workers, pinned=False)


def test_order_of_every_epoch_is_the_seeds_alone():
    first, _ = load(16)
    torch.manual_seed(99)
    second, _ = load(16)
    epochs = [order(first), order(first)]
    torch.rand(7)
    assert epochs == [order(second), order(second)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == list(range(16))
    assert order(load(16, seed=1)[0]) != epochs[0]


def test_validation_neither_shuffles_nor_touches_torchs_own_generator():
    _, val = load(16)
    before = torch.random.get_rng_state()
    assert order(val) == [0, 1, 2]
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("count", "batch_size", "seen"), [(9, 4, 8), (10, 4, 10), (1, 4, 1), (3, 1, 3), (8, 4, 8)]
)
def test_only_a_last_batch_of_a_single_image_is_left_out(count, batch_size, seen):
    assert len(order(load(count, batch_size)[0])) == seen


def test_workers_load_the_same_batches():
    assert order(load(16, workers=1)[0]) == order(load(16)[0])


def test_image_shape_is_channels_height_width():
    assert Splits(numbered(2), numbered(2), ("a",)).image_shape == (1, 2, 3)
