"""A process that trains and is killed by SIGKILL at a moment that it is told.

It dies in the `count`-th call of what `moment` names: "backward" before a micro-batch's backward,
"write" with half a checkpoint written, "link" between a checkpoint and its names.
"""

import os
import signal
from pathlib import Path

import torch

from halfstep.train.config.files import load
from halfstep.train.loop.loop import train
from halfstep.train.run.microbatch import MicroBatches
from halfstep.train.store import checkpoint, rotation


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying(real, count, half=None):
    calls = []

    def call(*args):
        calls.append(None)
        if len(calls) == count:
            if half:
                half(*args)
            die()
        return real(*args)

    return call


def half_written(state, file):
    torch.save(state, file)
    file.flush()
    os.truncate(file.name, Path(file.name).stat().st_size // 2)


def main(config, run, recipe, workers, moment, count):
    if moment == "backward":
        MicroBatches.add = dying(MicroBatches.add, count)
    elif moment == "write":
        checkpoint._write = dying(checkpoint._write, count, half_written)
    else:
        rotation.link = dying(rotation.link, count)
    chosen = load(str(config), [f"data.workers={workers}"], {"recipe": recipe})
    train(chosen, run, quiet=True, go_on="auto")
