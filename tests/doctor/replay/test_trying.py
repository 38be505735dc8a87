"""Changes that are tried: the step is run with changed lines of the program's own functions."""

from __future__ import annotations

import importlib.util
import linecache
import sys

import pytest
import torch

from doctor.loops import batches
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record.attempts import Attempts, Edit
from halfstep.doctor.replay.edits import in_effect

TRAINING = """
import torch
from torch import nn
from torch.nn import functional

class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, inputs):
        lifted = self.lift(inputs) * 6
        BODY

def train(batches):
    torch.manual_seed(0)
    model = Gates().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for images, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(images.half() * 3).float(), labels).backward()
        optimizer.step()
"""
TWO = """first = torch.exp(lifted)
        second = torch.exp(lifted * 1.5)
        return self.head(first / (first + 1) + second / (second + 1))"""
HOPELESS = "return self.head(torch.exp(lifted * 100) * 60000)"


def program(tmp_path, body: str):
    path = tmp_path / "program.py"
    path.write_text(TRAINING.replace("BODY", body))
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module
    linecache.checkcache(str(path))
    spec.loader.exec_module(module)
    return module


def diagnosed(tmp_path, body: str):
    module, watch = program(tmp_path, body), Watch()
    with watch:
        module.train(batches(4))
    assert not watch.troubles, watch.troubles
    evidence = watch.close()
    return diagnose(evidence).verdicts[0].finding, evidence.of(Attempts).found


def test_an_insufficient_change_is_followed_by_the_next_and_a_second_line_is_changed_too(
    tmp_path,
) -> None:
    finding, (attempt,) = diagnosed(tmp_path, TWO)
    assert attempt.first[-1] == "+ first = torch.exp(lifted.float())"  # fp16 weights follow
    assert [each for each in finding.change if each[0] != "#"] == [
        "- first = torch.exp(lifted)",
        "+ first = torch.exp(lifted.clamp(max=10))",
        "@ program.py:14",
        "- second = torch.exp(lifted * 1.5)",
        "+ second = torch.exp((lifted * 1.5).clamp(max=10))",
    ]
    assert finding.tried.startswith("tried: finite, ")
    assert attempt.finite


def test_the_changed_program_is_as_finite_as_the_attempt_says(tmp_path) -> None:
    """The printed change, made in the file, and the program run again."""
    finding, _ = diagnosed(tmp_path, TWO)
    text = TWO
    changes = [each for each in finding.change if each[0] in "-+"]
    for before, after in zip(changes[::2], changes[1::2], strict=True):
        assert before[2:] in text
        text = text.replace(before[2:], after[2:])
    watch = Watch()
    with watch:
        program(tmp_path, text).train(batches(4))
    assert diagnose(watch.close()).verdicts == ()


def test_a_change_that_does_not_help_is_given_in_words(tmp_path) -> None:
    finding, (attempt,) = diagnosed(tmp_path, HOPELESS)
    assert not attempt.finite
    assert finding.tried == ""
    assert not [each for each in finding.change if each.startswith(("- ", "+ "))]
    assert finding.change[0] == "in place of"


def test_functions_have_their_own_code_again_after_the_block(tmp_path) -> None:
    module = program(tmp_path, "return lifted")
    forward = module.Gates.forward
    before, inputs = forward.__code__, torch.ones(1, 6)
    model = module.Gates()
    line = 1 + linecache.getlines(module.__file__).index("        return lifted\n")
    with in_effect([Edit(module.__file__, line, ("return lifted * 2",))]):
        doubled = model(inputs)
    assert torch.equal(doubled, model(inputs) * 2)
    assert forward.__code__ is before


@pytest.mark.parametrize(
    ("line", "text"), [(2, "import torch"), (11, "def forward(self, inputs, more=1):")]
)
def test_a_line_that_no_call_would_run_cannot_be_changed(tmp_path, line: int, text: str) -> None:
    module = program(tmp_path, "return lifted")
    with (
        pytest.raises(ValueError, match="not in the body of a function"),
        in_effect([Edit(module.__file__, line, (text,))]),
    ):
        pass


LOOP = """
import torch
from torch import nn
from torch.nn import functional

FACTOR = 400

def energy(outputs, factor):
    scaled = outputs * factor
    return STATEMENT

def train(batches):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = energy(model(images), FACTOR) + functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("(1 - (scaled.exp() + 1).log()).square().mean()", "scaled.float().clamp(max=87).exp()"),
        (
            "(torch.exp(scaled) / 3 @ torch.ones(3)).log().sum()",
            "exp(scaled.float().clamp(max=87))",
        ),
        ("(-scaled).exp().amax() ** 0.5", "(-scaled).float().clamp(max=87).exp()"),
        ("functional.relu((scaled[:, 0] / 0.25).exp()).log1p().sum()", "/ 0.25).float().clamp(max"),
    ],
)
def test_a_statement_of_the_loop_runs_with_the_values_that_its_calls_had(
    tmp_path, monkeypatch, statement: str, changed: str
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TRAINING", LOOP.replace("STATEMENT", statement))
    finding, (attempt,) = diagnosed(tmp_path, "")
    assert changed in finding.change[-1]
    assert (attempt.finite, finding.tried[:13]) == (True, "tried: finite")
    with_change = LOOP.replace("STATEMENT", finding.change[-1].removeprefix("+ return "))
    monkeypatch.setattr(sys.modules[__name__], "TRAINING", with_change)
    watch = Watch()
    with watch:
        program(tmp_path, "").train(batches(1))
    assert not [each for each in watch.close().births if each.culprit]


def test_a_statement_whose_calls_are_not_all_known_is_not_tried(tmp_path, monkeypatch) -> None:
    statement = "max(scaled.exp().mean(), torch.zeros(()))"
    monkeypatch.setattr(sys.modules[__name__], "TRAINING", LOOP.replace("STATEMENT", statement))
    finding, attempts = diagnosed(tmp_path, "")
    assert attempts == ()
    assert finding.change[0] == f"- return {statement}"
    assert finding.tried == ""
