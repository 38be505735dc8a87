"""Turns a config into a run: the data, model and optimizer, the loop, and the run directory.

`config` does not import torch, so that configs are listed and checked without delay. Training
starts in `loop.loop.train`. A call of this package, `halfstep.train("digits")`, calls
`python.train`.
"""

from halfstep.callable_module import make_callable
from halfstep.train.python import train

__all__ = ["train"]

make_callable(__name__, train)
