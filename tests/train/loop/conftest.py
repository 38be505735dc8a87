"""A run that nothing disturbs, for runs that something does to be compared with."""

import pytest

from halfstep.train.loop.loop import train


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """A run takes NumPy's random numbers as they are, so other modules do not share this one."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(pictures(), run, quiet=True)
    return run
