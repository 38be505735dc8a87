"""The always-on numbers do not wait for the device."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from halfstep.doctor import Watch
from halfstep.doctor.signals.closely import is_sampled
from halfstep.doctor.signals.numbers import Series


def test_an_ordinary_step_reads_nothing_from_the_device(monkeypatch) -> None:
    # Fake tensors raise where a value is asked for. What has arrived from the step before is read
    # in `settle` alone, which on a CPU does not wait for another step.
    monkeypatch.setattr(Series, "settle", lambda series, keep=0: None)
    observer = Watch()
    reads = []
    with FakeTensorMode(), observer:
        model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        for number in range(9):
            before = len(observer.troubles)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(torch.empty(8, 6))
                loss = nn.functional.cross_entropy(outputs, torch.zeros(8, dtype=torch.long))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if len(observer.troubles) > before:
                reads.append(number)
    # The first step reads buffers, and those that are looked at closely read parameters.
    assert reads == [0, *(number for number in range(9) if is_sampled(number))]
