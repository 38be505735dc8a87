"""A torchrun job under its agent, of which a worker kills itself by SIGKILL in the first attempt.

The agent is that of torchrun. Its workers are forked, and so need not import torch again.
"""

import logging
import os
import signal
import sys
import uuid

import torch
from torch.distributed.launcher import api
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from halfstep.cli import main
from halfstep.train.processes import distributed
from halfstep.train.run.microbatch import MicroBatches


def job(rank, count, *arguments):
    """Run `halfstep` in two workers; one dies in its COUNT-th micro-batch, none with rank -1."""
    logging.disable()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=1,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, worker)(rank, count, *arguments)


def launch(*arguments):
    """Run `halfstep` with --processes in workers that its launcher forks instead of executing."""

    def forking(config, program):
        config.start_method = "fork"
        # torch says in a line of its own which of the workers that it forked it ends.
        logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.CRITICAL)
        launched = elastic_launch(config, worker)

        def run(*command):
            assert (program, *command[:2]) == (sys.executable, "-m", "halfstep")
            return launched(-1, 0, *command[2:])

        return run

    api.elastic_launch = forking
    return main([str(each) for each in arguments])


def worker(rank, count, *arguments):
    # The fork leaves a broken pool of threads, which the first call replaces. If two threads of the
    # backward make this call at once, one of them finds no pool (pytorch#178535).
    torch.set_num_threads(torch.get_num_threads())
    if int(os.environ["RANK"]) == rank and distributed.restarts() == 0:
        MicroBatches.add = dying(MicroBatches.add, count)
    code = main([str(each) for each in arguments])
    if code:
        sys.exit(code)


def dying(real, count):
    calls = []

    def add(self, *batch):
        calls.append(None)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *batch)

    return add
