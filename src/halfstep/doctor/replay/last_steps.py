"""Takes the last steps of a run again, with and without a cause, and compares their losses.

The steps change copies of the parameters and of the optimizer's state, so the program is as before.
The batches are those of the last steps, in turn. Both losses are computed in fp32, so that they
differ by what the steps did to the weights, and not by the rounding of the loss.
"""

from __future__ import annotations

import math
import resource
import time
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.trials import Trial, Variation
from halfstep.doctor.replay.optimizer_copy import CannotBeTakenError, OptimizerCopy
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tape.tape import random_state
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats import torch_dtype
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

    from halfstep.doctor.replay.replay import Replayer
    from halfstep.doctor.replay.runs import Outcome

STEPS = 16
SECONDS = 20.0
SHARE, FEWEST_SECONDS = 0.25, 5.0
"""The share of the run's CPU time that all comparisons may take, and their time in short runs."""
MEMORY = 0.25
"""The share of the run's own memory that the copies may take."""


class LastSteps:
    """The last steps of one optimizer.

    Args:
        replayers: The last steps, which can be run again; at least one.
        optimizer: The optimizer.
        norm: The largest gradient norm that the optimizer was given in these steps; None if
            unknown.
        rate: The learning rate in the last of these steps, used if it is 0 by now.
    """

    def __init__(
        self,
        replayers: Sequence[Replayer],
        optimizer: Optimizer,
        norm: float | None,
        rate: float,
    ) -> None:
        self._replayers = replayers
        self._optimizer = optimizer
        self._norm = norm
        self._rate = rate
        self._until = time.monotonic() + _seconds(time.process_time())
        self._form: torch.dtype | None = None

    def compare(self, code: str, with_cause: Variation, without: Variation) -> Trial:
        """Take the steps twice.

        Args:
            code: The cause.
            with_cause: The way the program takes them.
            without: The way without the cause.
        """
        state = random_state(everything=True)
        try:
            self._check_memory()
            steps = self._count(with_cause)
            first, last = self._taken(with_cause, steps)
            return Trial(code, steps, first, last, self._taken(without, steps)[1])
        except CannotBeTakenError as error:
            return Trial(code, note=str(error))
        except Exception as error:  # noqa: BLE001  # an optimizer that needs more than gradients
            return Trial(code, note=f"{type(error).__name__}: {error}".partition("\n")[0])
        finally:
            state.restore()

    def _check_memory(self) -> None:
        """Check that the copies fit into the share of memory that they may take.

        Raises:
            CannotBeTakenError: If they do not.
        """
        held = [*parameters_of(self._optimizer), *tensors_in([*self._optimizer.state.values()])]
        copies = sum(each.nbytes for each in held)
        gpu = next((each.device for each in held if each.is_cuda), None)
        used = (
            torch.cuda.max_memory_allocated(gpu)
            if gpu is not None
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        if copies > MEMORY * used:
            raise CannotBeTakenError("copies of the weights need too much memory")

    def _count(self, variation: Variation) -> int:
        """Return how many steps there is time for, by the time of one step.

        Raises:
            CannotBeTakenError: If there is not time for each batch.
        """
        started = time.monotonic()
        optimizer = OptimizerCopy(self._optimizer, exact=False)
        self._form = self._computed(optimizer, variation)
        self._run(self._replayers[0], optimizer)
        seconds = time.monotonic() - started
        batches = len(self._replayers)
        # Two trials, each with a loss of every batch before and after the steps.
        left = (self._until - time.monotonic()) / (2 * max(seconds, 1e-9)) - 2 * batches
        steps = STEPS if left > STEPS else int(left)
        if steps < batches:
            raise CannotBeTakenError("a step takes too long")
        return steps

    def _computed(self, optimizer: OptimizerCopy, variation: Variation) -> torch.dtype | None:
        """Return the format of the weights in the forward pass, if it is not their format now.

        A program may cast its model for the forward pass only.
        """
        outcome = self._replayers[0].step(optimizer.leaves())
        return torch_dtype(variation.rounded) if outcome.note and variation.rounded else None

    def _taken(self, variation: Variation, steps: int) -> tuple[float, float]:
        """Take the steps in one way; return the mean losses before and after them."""
        optimizer = OptimizerCopy(self._optimizer, exact=variation.exact)
        if variation.rate or self._rate > 0:
            optimizer.set_rate(variation.rate or self._rate, always=variation.rate > 0)
        first = self._loss(optimizer)
        for number in range(steps):
            if time.monotonic() > self._until:
                raise CannotBeTakenError("the steps take too long")
            if variation.rounded and number % variation.every == 0:
                optimizer.round(torch_dtype(variation.rounded))
            replayer = self._replayers[number % len(self._replayers)]
            outcome = self._run(replayer, optimizer)
            gradients = {
                key: each.float() / outcome.scale if outcome.scale != 1 else each
                for key, each in outcome.gradients.items()
            }
            optimizer.update(gradients, self._norm)
        return first, self._loss(optimizer)

    def _run(self, replayer: Replayer, optimizer: OptimizerCopy) -> Outcome:
        outcome = replayer.step(optimizer.leaves(self._form))
        if outcome.note or not outcome.losses:
            raise CannotBeTakenError(outcome.note or "the last steps had no backward")
        return outcome

    def _loss(self, optimizer: OptimizerCopy) -> float:
        """Return the mean loss of the batches in fp32."""
        exact = {
            key: each.detach().float() if each.dtype in HALVES else each
            for key, each in optimizer.parameters.items()
        }
        for each in exact.values():
            each.requires_grad_()
        losses = []
        for replayer in self._replayers:
            outcome = replayer.exact_step(exact)
            if outcome.note or not outcome.losses:
                raise CannotBeTakenError(outcome.note or "the last steps had no backward")
            losses += [each.double().sum().item() / outcome.scale for each in outcome.losses]
        return math.fsum(losses) / len(losses)


def _seconds(run: float) -> float:
    """Return how long the comparisons may take after a run of so many CPU seconds."""
    return min(SECONDS, max(FEWEST_SECONDS, SHARE * run))
