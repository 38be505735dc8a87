"""The changes for samples without a gradient and for blanks in CTC targets mend their programs."""

from __future__ import annotations

import runpy

import pytest

from halfstep.doctor import Watch, diagnose

AUTOENCODER = """
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
torch.manual_seed(0)
inputs = torch.randn(48, 6)
encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)

def sampled(mean, std):
    {draw}

for _ in range(6):
    mean = encoder(inputs)
    std = torch.ones_like(mean)
    loss = (decoder(sampled(mean, std)) - inputs).square().mean()
    loss = loss + 0.1 * kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CTC = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(6, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{criterion}
targets = torch.tensor([[0, 1, 2], [2, 3, 0]])
lengths = torch.tensor([{lengths}])

for _ in range(4):
    chances = model(torch.randn(12, 2, 6)).log_softmax(2)
    optimizer.zero_grad()
    criterion(chances, targets, torch.tensor([12, 12]), lengths).backward()
    optimizer.step()
"""
MENDED = [
    (
        AUTOENCODER,
        "draw",
        "return Normal(mean, std).sample()",
        "return Normal(mean, std).rsample()",
    ),
    (
        AUTOENCODER,
        "draw",
        "return torch.normal(mean, std)",
        "return (mean + std * torch.randn_like(mean))",
    ),
    (
        CTC,
        "criterion",
        "criterion = nn.CTCLoss(zero_infinity=True)",
        "criterion = nn.CTCLoss(zero_infinity=True, blank=4)",
    ),
]


def findings(path, text):
    path.write_text(text)
    with Watch() as watch:
        runpy.run_path(str(path))
    evidence = watch.close()
    assert not watch.troubles, watch.troubles
    return [each.finding for each in diagnose(evidence).verdicts]


@pytest.mark.parametrize(("program", "name", "line", "mended"), MENDED)
def test_the_change_is_one_of_lines_and_mends(program, name, line, mended, tmp_path) -> None:
    path, others = tmp_path / "train.py", {"lengths": "3, 3"}
    (found,) = findings(path, program.format(**{name: line}, **others))
    assert [each for each in found.change if each[0] in "-+"] == [f"- {line}", f"+ {mended}"]
    assert findings(path, program.format(**{name: mended}, **others)) == []


def test_blanks_that_are_only_padding_are_told_apart(tmp_path) -> None:
    text = CTC.replace("[0, 1, 2]", "[1, 1, 2]")
    criterion = "criterion = nn.CTCLoss()"
    (found,) = findings(tmp_path / "a.py", text.format(criterion=criterion, lengths="3, 3"))
    assert "3 of 6 targets" in found.summary
    assert "target_lengths" in found.change[0]
    assert findings(tmp_path / "b.py", text.format(criterion=criterion, lengths="3, 2")) == []
