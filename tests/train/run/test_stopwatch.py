import pytest

from halfstep.train.run import training
from halfstep.train.run.training import Stopwatch


def test_counts_while_it_runs(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    watch.add(10.0)
    assert (watch.seconds, watch.running) == (10.0, False)
    watch.start()
    now[0] += 2
    assert (watch.seconds, watch.running) == (12.0, True)
    watch.start()
    now[0] += 1
    watch.stop()
    now[0] += 50
    assert watch.seconds == pytest.approx(13.0)
