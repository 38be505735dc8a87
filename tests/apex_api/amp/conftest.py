"""Every test finds amp as a fresh process has it."""

from __future__ import annotations

import pytest
import torch

from halfstep.apex.amp import _amp_state, casts


@pytest.fixture(autouse=True)
def _fresh_amp():
    _forget()  # programs that other tests have run
    torch.manual_seed(0)
    yield
    _forget()


def _forget():
    casts.end_casts()
    casts._registered.clear()
    vars(_amp_state).clear()
    _amp_state.__init__()
