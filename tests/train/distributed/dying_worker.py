"""A worker of torchrun; one rank kills itself by SIGKILL in a micro-batch of the first attempt.

    python -m torch.distributed.run ... dying_worker.py RANK COUNT ARGUMENT...

The arguments are halfstep's own. With RANK -1 nobody dies.
"""

import os
import signal
import sys

from halfstep.cli import main
from halfstep.train import distributed
from halfstep.train.microbatch import MicroBatches


def dying(real, count):
    calls = []

    def add(self, *batch):
        calls.append(None)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *batch)

    return add


if __name__ == "__main__":
    rank, count, *arguments = sys.argv[1:]
    if os.environ["RANK"] == rank and distributed.restarts() == 0:
        MicroBatches.add = dying(MicroBatches.add, int(count))
    sys.exit(main(arguments))
