"""Which levels a program may ask for decides whether torch trains them alike."""

import pytest

from .conftest import migrate

PROGRAM = """\
import argparse
import torch
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--level"{choices})
args = parser.parse_args([])
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
{initialize}
for batch in [torch.ones(1, 2)]:
    loss = net(batch).sum()
    with amp.scale_loss(loss, opt) as scaled:
        scaled.backward()
    opt.step()
    opt.zero_grad()
"""
GIVEN = "net, opt = amp.initialize(net, opt, opt_level={})"


def warns(level, choices="", before=""):
    text = PROGRAM.format(choices=choices, initialize=before + GIVEN.format(level))
    return any("as O1 did" in note.reason for note in migrate(text, "torch").notes)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ("", True),
        (', default="O1"', True),
        (', choices=["O0", "O1"], default="O1"', False),
        (', choices=("O1", "O2")', True),
        (", choices=LEVELS", True),
    ],
)
def test_choices_of_the_command_line(choices, expected):
    assert warns("args.level", choices) is expected


def test_what_is_set_later_counts_beside_the_choices():
    choices = ', choices=["O0", "O1"]'
    assert not warns("args.level", choices, before='args.level = "O0"\n')
    assert warns("args.level", choices, before='args.level = "O2"\n')
    assert warns("args.level", before='args.level = "O1"\n')  # other files may set it too


def test_one_of_two_levels():
    assert not warns('"O1" if args.half else "O0"')
    assert warns('"O2" if args.half else "O0"')
    chosen = 'if args.half:\n    level = "O1"\nelse:\n    level = {}\n'
    assert not warns("level", before=chosen.format('"O0"'))
    assert warns("level", before=chosen.format('"O2"'))
    assert warns("level", before=chosen.format("args.level"))
    assert warns("level", before='level = "O"\nlevel = level + "1"\n')
    assert warns("level", before='level = "O"\nlevel += "2"\n')


def test_a_parameter_may_be_any_level():
    inside = 'def start(level="O1"):\n    return amp.initialize(net, opt, opt_level=level)\n\n\n'
    text = PROGRAM.format(choices="", initialize=inside + "net, opt = start()")
    assert any("as O1 did" in note.reason for note in migrate(text, "torch").notes)


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ('args.level == "O1"', False),
        ('args.level in ("O0", "O1")', False),
        ('args.half and args.level == "O1"', False),
        ('args.level != "O0"', True),
        ('args.other == "O1"', True),
    ],
)
def test_tests_around_amp(test, expected):
    text = PROGRAM.format(
        choices="", initialize=f"if {test}:\n    {GIVEN.format('args.level')}"
    ).replace(
        "    with amp.scale_loss(loss, opt) as scaled:\n        scaled.backward()\n",
        f"    if {test}:\n        with amp.scale_loss(loss, opt) as scaled:\n"
        "            scaled.backward()\n    else:\n        loss.backward()\n",
    )
    assert any("as O1 did" in note.reason for note in migrate(text, "torch").notes) is expected
    if test == 'args.level != "O0"':
        assert 'enabled=args.level != "O0")' in migrate(text, "torch").after
        assert "recipe=args.level)" in migrate(text, "halfstep").after
