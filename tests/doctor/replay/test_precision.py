"""How often the last step of a healthy program is run again, and how long its harm is measured."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.replay.last_steps import FEWEST_SECONDS, SECONDS, _seconds
from halfstep.doctor.replay.playback import Playback

BF16 = torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("forward", "runs"),
    [
        # The forward as in an evaluation, and as in training.
        (nullcontext(), ["None", "Tracer", "Forward", "Forward"]),
        (BF16, ["None", "Tracer", "Widen", "Forward", "Forward"]),
    ],
    ids=["fp32", "bf16"],
)
def test_the_last_step_is_run_again_once_for_each_question(forward, runs, monkeypatch) -> None:
    modes: list[str] = []
    run = Playback.run

    def counted(self, mode, *others):
        modes.append("None" if mode is None else type(mode).__name__)
        return run(self, mode, *others)

    monkeypatch.setattr(Playback, "run", counted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Watch() as watch:
        for _ in range(4):
            optimizer.zero_grad()
            with forward:
                loss = nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
            loss.backward()
            optimizer.step()
    evidence = watch.close()
    assert not diagnose(evidence).verdicts
    assert modes == runs
    precision = evidence.precision
    assert len(precision.agreements) == 4
    same = precision.loss == precision.exact_loss
    assert same is ("Widen" not in runs)


def test_harm_is_measured_for_a_share_of_the_time_of_the_program() -> None:
    assert _seconds(6.0) == FEWEST_SECONDS
    assert _seconds(40.0) == 10.0
    assert _seconds(3600.0) == SECONDS
