"""Saves and restores all random number generators that a model may use, as plain data."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from halfstep.kernels import accelerators


def capture() -> dict[str, Any]:
    """Return the states of torch's generators (CPU and every GPU), NumPy's and Python's."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002  (it is what libraries draw from)
    version, numbers, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": accelerators.random_states(),  # of any kind; the name is that of old checkpoints
        "numpy": [
            str(name),
            np.asarray(keys).tolist(),
            *(int(position), int(has_gauss)),
            float(gauss),
        ],
        "python": [version, list(numbers), gauss_next],
    }


def restore(state: dict[str, Any]) -> None:
    """Restore the states that `capture` returned; states of GPUs that do not exist are ignored."""
    torch.set_rng_state(state["torch"])
    accelerators.set_random_states(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002  (see above)
    version, numbers, gauss_next = state["python"]
    random.setstate((version, tuple(numbers), gauss_next))
