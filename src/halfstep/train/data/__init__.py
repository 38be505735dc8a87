"""The data sets that a config can name, each one file that turns its section into `Splits`.

Adding one takes a file here, a section class in `train/config.py`, and a row in `_LOADERS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.train.data import digits
from halfstep.train.data.splits import Splits, loaders

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.train.config import DataConfig

__all__ = ["Splits", "load", "loaders"]

_LOADERS: dict[str, Callable[[DataConfig], Splits]] = {"digits": digits.load}


def load(config: DataConfig) -> Splits:
    """Return the training and the validation split of the data set that `config` names."""
    return _LOADERS[config.name](config)
