"""What two run directories must have in common to be of the same training, times aside."""

import json
import math

import torch

from halfstep.train.store import checkpoint
from halfstep.train.store.run_directory import read_summary

OF_THE_CLOCK = (
    *("images_per_second", "train_seconds", "wall_seconds", "peak_memory_bytes"),
    *("step_seconds_median", "step_seconds_p95", "core_wait_share"),
)


def lines(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in OF_THE_CLOCK} for line in found]


def summary(run):
    return {k: v for k, v in read_summary(run).items() if k not in OF_THE_CLOCK}


def same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (isinstance(first, float) and math.isnan(first + second))


OF_LAST = ("model", "averaged", "engine", "schedule")


def assert_same_run(run, other, *, of_one_process=True, of_best=OF_LAST):
    """Compare two runs.

    A run that starts takes Python's and NumPy's random numbers, which it does not use, as they
    are: in another process they are in another state, which another number of bytes may hold.
    """
    assert lines(run) == lines(other)
    mine, theirs = summary(run), summary(other)
    left_out = set() if of_one_process else {"checkpoint_bytes"}
    differing = {name for name in mine if mine[name] != theirs[name]} - left_out
    assert {name: (mine[name], theirs[name]) for name in differing} == {}
    for name, fields in (("last", OF_LAST), ("best", of_best)):
        one, two = (checkpoint.load(checkpoint.path(each, name)) for each in (run, other))
        for field in (*fields, "step", "loss"):
            assert same(getattr(one, field), getattr(two, field)), (name, field)
        for kind in one.rng if of_one_process else ("torch",):
            assert same(one.rng[kind], two.rng[kind]), (name, kind)
