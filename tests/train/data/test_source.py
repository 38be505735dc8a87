import pytest
import torch

from halfstep.train.config.data import SplitConfig
from halfstep.train.data.source import Part, limited, spread


class Numbers:
    def __len__(self):
        return 10

    def read(self, index):
        return torch.zeros(1), index

    def where(self, index):
        return f"number {index}"


@pytest.mark.parametrize(
    ("limit", "kept"), [(None, 10), (3, (0, 3, 6)), (1, (0,)), (10, 10), (99, 10), (7, 7)]
)
def test_limit_is_spread_over_a_sorted_split(limit, kept):
    split = limited(Numbers(), SplitConfig(limit=limit))
    labels = tuple(split.read(index)[1] for index in range(len(split)))
    if isinstance(kept, int):
        assert len(set(labels)) == kept
    else:
        assert labels == kept
    assert labels == tuple(sorted(labels))


def test_a_part_names_images_as_the_whole_does():
    part = Part(Numbers(), (4, 8))
    assert part.where(1) == "number 8"
    assert spread(0, 3) == ()
