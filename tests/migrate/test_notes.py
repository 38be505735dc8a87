"""One note for a cause, none that is false, and nothing that is left over without a reason."""

import pytest

from halfstep.migrate import TARGETS

from .conftest import migrate

PROGRAM = """\
import torch
from apex import amp

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
net, opt = amp.initialize(net, opt, opt_level="{level}")
{before}
for batch in [torch.ones(1, 2)]:
    loss = {loss}
    with amp.scale_loss(loss, opt) as scaled:
        scaled.backward()
    {clip}
    opt.step()
    opt.zero_grad()
"""


def program(level="O1", before="", loss="net(batch).sum()", clip="print(loss)"):
    return PROGRAM.format(level=level, before=before, loss=loss, clip=clip)


def reasons(text, to="halfstep"):
    return [note.reason for note in migrate(text, to).notes]


def test_a_file_without_an_initialize_gets_one_note():
    text = "from apex import amp\n\n\ndef f(loss, opt):\n" + 2 * (
        "    with amp.scale_loss(loss, opt) as scaled:\n        scaled.backward()\n"
    )
    (reason,) = reasons(text)
    assert reason.startswith("no amp.initialize in this file")


def test_a_scale_loss_that_is_called_otherwise_is_not_called_missing():
    text = program().replace("with amp.scale_loss(loss, opt) as scaled:", "with f(amp.scale_loss):")
    assert not any("no amp.scale_loss in this file" in reason for reason in reasons(text))


def test_amp_in_an_argument_of_unknown_code_is_the_only_cause():
    text = (
        "from apex import amp\nimport lib\nnet, opt = amp.initialize(net, opt)\nlib.f(net, amp)\n"
    )
    (reason,) = reasons(text)
    assert reason.startswith("amp itself is an argument here")


@pytest.mark.parametrize(
    ("loss", "before", "noted"),
    [
        ("crit(net(batch).sigmoid(), batch[:, :1])", "crit = torch.nn.BCELoss()", True),
        ("net(batch).sum()", "crit = torch.nn.BCELoss()", False),
        (
            "net(batch).sum()",
            "def f(x): return torch.nn.functional.binary_cross_entropy(x, x)",
            False,
        ),
    ],
)
def test_a_loss_that_autocast_refuses_is_noted_where_autocast_is_on(loss, before, noted):
    found = reasons(program("O2", before, loss), "torch")
    assert any("torch.autocast refuses this loss" in reason for reason in found) == noted


@pytest.mark.parametrize("to", TARGETS)
def test_a_removed_dummy_step_is_noted(to):
    done = migrate(program(before="opt.zero_grad(); opt.step()"), to)
    assert any("a step before the first backward is removed" in n.reason for n in done.notes)


def test_a_clip_that_never_runs_limits_nothing():
    clip = "if 0: torch.nn.utils.clip_grad_norm_(amp.master_params(opt), 1.0)"
    after = migrate(program(clip=clip)).after
    assert "if 0" not in after
    assert "clip_norm" not in after


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("test", ["flag", "hasattr(opt, 'x')", "not flag"])
def test_no_branch_is_left_with_a_pass(test, to):
    before = f"if {test}:\n    amp.register_half_function(torch, 'mm')\nelse:\n    print('no amp')"
    after = migrate(program(before=before), to).after
    assert "pass" not in after
    assert after.count("if ") == 1 + after.count(' if torch.cuda.is_available() else "cpu"')
    assert ("if flag:\n    print" in after) == (test == "not flag")
