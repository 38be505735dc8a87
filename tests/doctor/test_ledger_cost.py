"""What the ledgers add to a step, counted: calls of doctor's functions, operators, and reads."""

from __future__ import annotations

import sys

import pytest
import timm
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.doctor import Watch
from halfstep.doctor.signals.data.batches import Batches
from halfstep.doctor.signals.data.changed import Changes
from halfstep.doctor.signals.data.draws import Draws
from halfstep.doctor.signals.data.indexing import Indexing
from halfstep.doctor.signals.data.passes import Passes
from halfstep.doctor.signals.data.sampling import FIRST, RowSamples
from halfstep.doctor.signals.ledgers.clipping import Clipping
from halfstep.doctor.signals.ledgers.hook_writes import HooksThatWrite
from halfstep.doctor.signals.ledgers.left_out import LeavingOut
from halfstep.doctor.signals.ledgers.mode_writes import ModesThatWrite
from halfstep.doctor.signals.ledgers.parameters import Bookkeeping
from halfstep.doctor.signals.ledgers.rebuilt import Rebuilding
from halfstep.doctor.signals.ledgers.uneven import CALLS, Uneven
from halfstep.doctor.signals.ledgers.writes import Writes
from halfstep.doctor.signals.movement.averaging import Averaging
from halfstep.doctor.signals.movement.kept_graphs import KeepingGraphs
from halfstep.doctor.signals.movement.signs import Signs
from halfstep.doctor.signals.program.frozen_parts import FrozenParts
from halfstep.doctor.signals.signal import EVENTS
from halfstep.doctor.signals.values.cancelling import Cancelling
from halfstep.doctor.signals.values.lost_terms import Losing
from halfstep.doctor.signals.values.momenta import Momenta
from halfstep.doctor.signals.values.samples import EVERY

MOST_CALLS = 30
"""Python calls of each of these ledgers in a step of 62 parameters."""


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


KINDS = [
    *(Batches, Changes, Draws, Indexing, Passes, RowSamples),
    *(Averaging, Bookkeeping, Cancelling, Clipping, FrozenParts, KeepingGraphs, LeavingOut),
    *(Losing, Rebuilding, Signs, Uneven, Writes),
    *(HooksThatWrite, ModesThatWrite, Momenta),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_usual_step_costs_a_ledger_few_calls_no_operator_and_no_read(kind) -> None:
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    count, operators = 0, Operators()

    def counted(method):
        def call(*args):
            def profile(frame, event, _):
                nonlocal count
                count += event == "call" and frame.f_code.co_filename != __file__

            with operators:
                sys.setprofile(profile)
                try:
                    return method(*args)
                finally:
                    sys.setprofile(None)

        return call

    with Watch() as watch:
        for _ in range(3):
            step()
        bus = watch.bus
        bus.registry.optimizer(optimizer).steps = EVERY + 1
        bus[Bookkeeping]._accounts[0].steps = EVERY  # the next step is a usual one
        bus[Losing]._steps, bus[Losing]._on = EVERY + 1, False
        bus[Cancelling]._count, bus[Uneven]._calls = EVERY, CALLS
        bus[RowSamples]._calls = FIRST
        for event in EVENTS:
            hears = bus.hear[event]
            hears[:] = [counted(each) if type(each.__self__) is kind else each for each in hears]
        step()
        for event in EVENTS:
            bus.hear[event].clear()
    assert not watch.troubles
    assert 0 < count <= MOST_CALLS
    assert not operators.names
