"""Pairs of runs that start in one directory at once; prints as JSON how each pair ended.

The two of a pair differ in the seed, and are forked from a process that has imported all they need.
"""

import json
import os
import random
import sys
import time
import warnings

from halfstep.cli import main

LONGEST_HEAD_START_S = 0.2


def start(config, run, seed, wait):
    """Train in a forked process, which begins some seconds from now; return its id."""
    child = os.fork()
    if child:
        return child
    with run.with_name(f"{run.name}-{seed}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    warnings.simplefilter("ignore")
    time.sleep(wait)
    code = main(["train", config, "--out", str(run), "--quiet", "--seed", str(seed)])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def pairs(config, folder, count, seed):
    chance = random.Random(seed)
    ended = []
    for number in range(count):
        run = folder / str(number)
        waits = [0.0, chance.uniform(0, LONGEST_HEAD_START_S)]
        chance.shuffle(waits)
        children = [start(config, run, which, wait) for which, wait in enumerate(waits)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        ended.append({"waits_s": waits, "exit_codes": codes})
    sys.stdout.write(json.dumps(ended))
