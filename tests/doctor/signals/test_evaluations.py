"""Calls in evaluation are counted once each, however many outputs have NaN."""

import math

import pytest
import torch

from halfstep.doctor.signals.values.evaluations import Evaluations
from halfstep.doctor.signals.watched import Watched


class Accelerator(torch.Tensor):
    """A tensor on the CPU that says it is on an accelerator."""

    @property
    def device(self):
        return torch.device("cuda")


@pytest.mark.parametrize("kind", [torch.Tensor, Accelerator])
def test_a_call_counts_once_whatever_the_number_of_its_outputs_with_nan(kind):
    counted = Evaluations(Watched())
    bad, good = (torch.full((2,), value).as_subclass(kind) for value in (math.nan, 1.0))
    counted.take([bad, bad], 0)
    counted.take([good, bad], 1)
    counted.take([good, good], 2)
    found = counted.freeze()["evaluation"]
    assert (found.calls, found.bad) == (3, 2)
