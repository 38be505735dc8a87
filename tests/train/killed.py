"""A process that trains and is killed by SIGKILL, or gets a Ctrl-C, at a moment that it is told.

It dies in the `count`-th call of what `moment` names: "backward" before a micro-batch's backward,
"write" with half a checkpoint written, "link" between a checkpoint and its names, "receive" while a
worker hands over what it has loaded, "piece" with a part of a checkpoint written. In the background
a write takes its time, and the run trains on: "backward" is in the middle of one as well.
"""

import os
import signal
import time
from multiprocessing import connection
from pathlib import Path

import torch

import warm
from halfstep.train.config.files import load
from halfstep.train.loop.loop import train
from halfstep.train.run.microbatch import MicroBatches
from halfstep.train.store import checkpoint, rotation, snapshot

PAUSE = 2e-5
"""Seconds before each of the about 840 pieces of a checkpoint."""


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(count, real, act):
    """Return a function that does something more in one of its calls, before its work."""
    calls = []

    def call(*args):
        calls.append(None)
        if len(calls) == count:
            act(*args)
        return real(*args)

    return call


def die_with_half_written(state, file):
    torch.save(state, file)
    file.flush()
    os.truncate(file.name, Path(file.name).stat().st_size // 2)
    die()


class InPieces:
    """A file that writes what it is given at once, and does something before."""

    def __init__(self, file, before):
        self._file = file
        self._before = before
        self.flush = file.flush

    def write(self, content):
        self._before()
        written = self._file.write(content)
        self._file.flush()
        return written


def main(config, run, recipe, workers, moment, count, in_background=False):
    if in_background:
        snapshot.LEAST_BYTES = 0
        real = checkpoint._write
        piece = at_call(count, lambda: time.sleep(PAUSE), die if moment == "piece" else int)
        checkpoint._write = lambda state, file: real(state, InPieces(file, piece))
    if moment == "backward":
        MicroBatches.add = at_call(count, MicroBatches.add, die)
    elif moment == "write":
        checkpoint._write = at_call(count, checkpoint._write, die_with_half_written)
    elif moment == "receive":
        connection.answer_challenge = at_call(count, connection.answer_challenge, die)
    elif moment == "link":
        rotation.link = at_call(count, rotation.link, die)
    chosen = load(str(config), [f"data.workers={workers}"], {"recipe": recipe})
    train(chosen, run, quiet=True, go_on="auto")


def interrupted(config, run, workers, count):
    """Be the command `halfstep train`; a terminal sends Ctrl-C to it and to its workers."""
    MicroBatches.add = at_call(
        count, MicroBatches.add, lambda *_: os.killpg(os.getpgrp(), signal.SIGINT)
    )
    options = ("--options", f"data.workers={workers}", "--quiet")
    return warm.halfstep("train", config, "--out", run, *options)
