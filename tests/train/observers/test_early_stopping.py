import math

import pytest

from halfstep.train.loop import loop
from halfstep.train.loop.loop import train
from halfstep.train.observers.early_stopping import EarlyStopping
from halfstep.train.task.figures import Figures, Monitor


def stops_at(metric, values, patience=2):
    stopping = EarlyStopping(patience, Monitor(metric, less_is_better=metric == "loss"))
    for number, value in enumerate(values, start=1):
        stopping.validated(Figures(loss=value, accuracy=value))
        if stopping.ends():
            return number
    return None


@pytest.mark.parametrize(
    ("metric", "values", "stops"),
    [
        ("accuracy", [0.1, 0.2, 0.2, 0.2], 4),
        ("accuracy", [0.1, 0.2, 0.1, 0.3, 0.2, 0.4, 0.3], None),
        ("loss", [3.0, 2.0, 2.5, 2.0], 4),
        ("loss", [3.0, 2.0, 2.5, 1.9], None),
        ("loss", [3.0, math.nan, math.nan], 3),
        ("loss", [math.nan, 2.0, 1.0, 0.5], None),
        ("loss", [math.nan, math.nan, 1.0], 2),
    ],
)
def test_stops_after_so_many_validations_without_a_better_one(metric, values, stops):
    assert stops_at(metric, values) == stops


@pytest.fixture
def losses(monkeypatch):
    """Make validations find these losses."""

    def found(*values):
        left = list(values)
        monkeypatch.setattr(loop, "validate", lambda _: Figures(left.pop(0), 0.5))
        return left

    return found


STOPPED = "stopped early: the validation loss has not been better than 2.0000 for 2 validations"
OPTIONS = ("early_stopping={metric: loss, patience: 2}", "epochs=9")


def test_run_ends_early_and_in_good_order(tiny, tmp_path, losses):
    losses(3.0, 2.0, 2.5, 2.0, 1.0)
    summary = train(tiny(*OPTIONS), tmp_path, quiet=True)
    assert (summary.status, summary.epochs, summary.error) == ("finished", 4, None)
    assert summary.note == STOPPED


def test_waiting_goes_on_where_the_run_does(tiny, tmp_path, losses, monkeypatch):
    losses(3.0, 2.0, 2.5)
    with pytest.raises(IndexError):  # the fourth validation
        train(tiny(*OPTIONS), tmp_path, quiet=True)
    losses(2.5, 1.0)
    summary = train(tiny(*OPTIONS), tmp_path, quiet=True, go_on="auto")
    assert (summary.epochs, summary.note) == (4, STOPPED)
    # It stays over: going on once more validates nothing.
    losses()
    assert train(tiny(*OPTIONS), tmp_path, quiet=True, go_on="auto").epochs == 4
