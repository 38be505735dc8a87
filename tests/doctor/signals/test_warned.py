"""Warnings are those of the program without doctor, with the same lines."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Watch


def train() -> None:
    """What torch warns of, in Python and in C++, some of it from two lines."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    second = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    first.step()
    second.step()
    for _ in range(2):
        optimizer.zero_grad()
        outputs = model(torch.ones(3, 4))
        functional.softmax(outputs)
        nn.Softmax()(outputs)
        assert outputs.grad is None
        assert torch.ones(3).T.ndim == 1
        loss = functional.mse_loss(outputs, torch.ones(3, 1))
        loss = loss + functional.mse_loss(outputs, torch.ones(1, 2))
        loss.backward(create_graph=True)
        optimizer.step()
    warnings.warn("the program's own", stacklevel=1)


@pytest.fixture
def _every_time():
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def warned(action: str, *, watched: bool) -> list[tuple[str, int, type[Warning], str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter(action)
        if watched:
            with Watch() as watch:
                train()
            assert not watch.troubles
        else:
            train()
    return [(each.filename, each.lineno, each.category, str(each.message)) for each in said]


@pytest.mark.usefixtures("_every_time")
@pytest.mark.parametrize("action", ["always", "default"])
def test_warnings_name_the_lines_that_they_name_without_doctor(action) -> None:
    expected = warned(action, watched=False)
    assert len({line for file, line, *_ in expected if file == __file__}) >= 7
    assert warned(action, watched=True) == expected


def test_python_shows_warnings_as_before_after_the_watch() -> None:
    before = warnings._showwarnmsg
    with Watch():
        assert warnings._showwarnmsg is not before
    assert warnings._showwarnmsg is before
