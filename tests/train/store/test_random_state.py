import random

import numpy as np
import torch

from halfstep.train.store import random_state


def draw():
    # The second normal of a pair is kept by NumPy and Python, and is part of their state.
    return (
        torch.rand(3).tolist(),
        np.random.normal(size=3).tolist(),  # noqa: NPY002  (the generator under test)
        [random.gauss(0, 1) for _ in range(3)],
    )


def test_generators_go_on_as_if_nothing_had_been_drawn(tmp_path):
    draw()
    state = random_state.capture()
    wanted = draw()
    draw()
    torch.save(state, tmp_path / "state.pt")
    random_state.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw() == wanted
