import random

import numpy as np
import pytest
import torch

from halfstep.train.data.sources.seeding import derive, generator, put_back, seed


def draw():
    return torch.rand(()).item(), random.random(), np.random.rand()  # noqa: NPY002  (transforms do)


def seed_all():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (see above)


def test_all_three_generators_depend_on_the_numbers_alone():
    seed(1, 2, 3)
    first = draw()
    draw()
    seed(1, 2, 3)
    assert draw() == first
    for others in ((1, 2, 4), (1, 3, 2), (2, 2, 3)):
        seed(*others)
        assert not set(draw()) & set(first)


def test_what_was_drawn_outside_goes_on_as_if_nothing_had_been_drawn_inside():
    seed_all()
    expected = [draw(), draw()]
    seed_all()
    found = [draw()]
    with pytest.raises(KeyError), put_back():
        {}[seed(7), draw()]
    found.append(draw())
    assert found == expected


def test_seeds_of_neighbours_have_nothing_in_common():
    assert (
        len(
            {
                derive(seed, epoch, index)
                for seed in range(3)
                for epoch in range(3)
                for index in range(3)
            }
        )
        == 27
    )
    assert not torch.rand(4, generator=generator(0, 1)).equal(
        torch.rand(4, generator=generator(0, 2))
    )
