import pytest
import torch

from halfstep.train.config.data import SplitConfig
from halfstep.train.data.sources.source import Subset, limited, spread


class Numbers:
    def __len__(self):
        return 10

    def read(self, index):
        return torch.zeros(1), index

    def where(self, index):
        return f"number {index}"


@pytest.mark.parametrize(
    ("limit", "kept"), [(None, 10), (3, 3), (1, 1), (10, 10), (99, 10), (7, 7)]
)
def test_limit_takes_so_many_different_images_in_their_order(limit, kept):
    split = limited(Numbers(), SplitConfig(limit=limit))
    labels = [split.read(index)[1] for index in range(len(split))]
    assert len(set(labels)) == len(labels) == kept
    assert labels == sorted(labels)


@pytest.mark.parametrize("order", ["sorted", "in turns"])
@pytest.mark.parametrize("limit", [500, 777, 2000])
def test_limit_keeps_the_classes_in_proportion_however_they_are_ordered(order, limit):
    kept = spread(10_000, limit)
    classes = [index // 1000 if order == "sorted" else index % 10 for index in kept]
    counts = [classes.count(label) for label in range(10)]
    assert max(counts) - min(counts) <= 0.1 * limit / 10 + 1


def test_a_sorted_split_is_limited_evenly():
    """One of each stretch, so that even a class of few images has its share."""
    assert [index // 100 for index in spread(1000, 10)] == list(range(10))


def test_a_part_names_images_as_the_whole_does():
    part = Subset(Numbers(), (4, 8))
    assert part.where(1) == "number 8"
    assert spread(0, 3) == ()
