"""What takes amp's place is not used where it does not exist yet."""

from __future__ import annotations

import pytest

from halfstep.migrate import TARGETS

from .conftest import migrate

WARMED_UP = """\
from apex import amp

def train(model, opt, data, criterion):
    shape = model(data[0][0]).shape
    model, opt = amp.initialize(model, opt, opt_level="O1")
    for images, labels in data:
        loss = criterion(model(images), labels)
        opt.zero_grad()
        with amp.scale_loss(loss, opt) as scaled:
            scaled.backward()
        opt.step()
    return shape
"""


@pytest.mark.parametrize("to", TARGETS)
def test_a_model_called_before_amp_is_initialized_stays_outside_autocast(to) -> None:
    after = migrate(WARMED_UP, to).after
    made = after.index("Engine(" if to == "halfstep" else "GradScaler(")
    assert "    shape = model(data[0][0]).shape\n" in after[:made]
    assert "autocast(" not in after[:made]
    assert "autocast(" in after[made:]
