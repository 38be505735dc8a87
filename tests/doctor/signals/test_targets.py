"""The range of the targets of a loss."""

import torch
from torch.nn import functional

from halfstep.doctor.signals.values.targets import target_ranges
from halfstep.doctor.tape.tape import Tape


def test_targets_that_the_loop_has_changed_since_are_not_known() -> None:
    tape, targets = Tape(), torch.ones(4)
    loss = functional.binary_cross_entropy_with_logits
    entry = tape.open("call", loss, (torch.zeros(4), targets), {})
    assert [(each.lowest, each.highest) for each in target_ranges([entry])] == [(1, 1)]
    targets.fill_(-1)
    assert not [*target_ranges([entry])]
