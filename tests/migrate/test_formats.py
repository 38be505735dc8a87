"""fp16 inputs outside of autocast, and losses that autocast refuses, are noted at their lines."""

import pytest

from halfstep.migrate import TARGETS

from .conftest import migrate

PROGRAM = """\
import torch
from torch import nn
from apex import amp

net = nn.Linear(4, 1).cuda()
criterion = nn.{criterion}()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net, optimizer = amp.initialize(net, optimizer, opt_level={level})
for images, labels in loader:
    optimizer.zero_grad()
    loss = criterion(net(images.half()).sigmoid(), labels)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
with torch.no_grad():
    for images, labels in validation:
        print(criterion(net(images{cast}), labels))
"""


def lines_with(reason, to, *, level='"O1"', criterion="MSELoss", cast=""):
    text = PROGRAM.format(level=level, criterion=criterion, cast=cast)
    return [note.line for note in migrate(text, to).notes if reason in note.reason]


@pytest.mark.parametrize("cast", [".half()", ".to(torch.float16)", ".type(torch.cuda.HalfTensor)"])
@pytest.mark.parametrize("to", TARGETS)
def test_fp16_inputs_outside_of_autocast_are_noted(to, cast):
    assert lines_with("this input is cast to fp16 outside of autocast", to, cast=cast) == [17]


@pytest.mark.parametrize("to", TARGETS)
def test_fp16_inputs_in_the_training_pass_are_cast_by_autocast(to):
    assert lines_with("cast to fp16 outside of autocast", to) == []


def test_at_a_level_from_the_command_line_fp16_inputs_are_noted_for_torch_alone():
    level = {"level": "args.opt_level", "cast": ".half()"}
    assert lines_with("cast to fp16 outside of autocast", "torch", **level) == [17]
    assert lines_with("cast to fp16 outside of autocast", "halfstep", **level) == []


@pytest.mark.parametrize(("level", "lines"), [('"O2"', [6]), ("args.opt_level", [6]), ('"O1"', [])])
def test_a_loss_that_autocast_refuses_is_noted_unless_o1_refused_it_too(level, lines):
    text = PROGRAM.format(level=level, criterion="BCELoss", cast="").replace(".half()", "")
    notes = migrate(text, "torch").notes
    assert [note.line for note in notes if "refuses this loss" in note.reason] == lines
    assert all("refuses" not in note.reason for note in migrate(text).notes)
