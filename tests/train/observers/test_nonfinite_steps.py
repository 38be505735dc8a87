"""Which losses were not finite, and whether the weights were updated with one."""

import math

import pytest
import torch

from halfstep.engine.closing.result import OptimizerStep, StepResult
from halfstep.recipe import recipe
from halfstep.train.observers.nonfinite import NonFiniteSteps
from halfstep.train.run.progress import Progress

TAKEN, SKIPPED = (
    StepResult((OptimizerStep(closed=True, has_gradients=True, _found_inf=torch.tensor(found)),))
    for found in (0.0, 1.0)
)


def steps():
    return NonFiniteSteps(torch.device("cpu"), Progress(), recipe("fp32"))


def see(watched, *losses):
    for loss in losses:
        watched.micro_batch(torch.tensor(loss), None, None)


def found(watched):
    """The first step that was not finite, and the one that the run was ended for."""
    progress = watched._progress
    watched.interval()
    ended = progress.error and int(progress.error.split("at step ")[1].split(",")[0])
    return progress.first_nonfinite_step, ended


@pytest.mark.parametrize(
    ("results", "nonfinite", "poisoned"),
    [
        ([SKIPPED, TAKEN], 5, 6),
        ([SKIPPED, SKIPPED], 5, None),
        ([TAKEN, TAKEN], 5, 5),
        ([None, None], 5, None),
    ],
)
def test_loss_that_is_not_finite_poisons_only_if_the_step_was_taken(results, nonfinite, poisoned):
    watched = steps()
    see(watched, 1.0)
    watched.stepped(4, TAKEN)
    for step, result in enumerate(results, start=5):
        see(watched, 1.0, math.inf)
        watched.stepped(step, result)
    assert found(watched) == (nonfinite, poisoned)


def test_an_interval_starts_anew_but_keeps_a_window_that_is_still_open():
    watched = steps()
    see(watched, math.nan)
    watched.stepped(1, SKIPPED)
    see(watched, math.inf)
    assert found(watched) == (1, None)
    watched.stepped(2, TAKEN)
    assert found(watched) == (1, 2)


def test_state_carries_the_interval_and_the_open_window_over():
    first, second = steps(), steps()
    see(first, math.inf)
    first.stepped(7, SKIPPED)
    see(first, math.inf)
    second.load_state_dict(first.state_dict())
    second.stepped(8, TAKEN)
    assert found(second) == (7, 8)


def test_of_another_number_of_processes_each_knows_what_all_know():
    states = [steps(), steps()]
    see(states[1], math.inf)
    states = [each.state_dict() for each in states]
    for first in (True, False):
        watched = steps()
        watched.load_state_dict(watched.redistributed(states, first=first))
        watched.stepped(1, TAKEN)
        assert found(watched) == (1, 1)
