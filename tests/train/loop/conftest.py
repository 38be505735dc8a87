"""A run that nothing disturbs, for runs that something does to be compared with."""

import random

import numpy as np
import pytest

from halfstep.train.loop.loop import train


def draw_anew():
    """Set the generators that a run takes as they are, whatever ran in this process before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the one that runs keep)


@pytest.fixture(scope="session")
def whole(pictures, tmp_path_factory):
    draw_anew()
    run = tmp_path_factory.mktemp("whole") / "run"
    train(pictures(), run, quiet=True)
    return run


@pytest.fixture(autouse=True)
def _draws_anew():
    draw_anew()
