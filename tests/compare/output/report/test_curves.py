import json
import math

from halfstep.compare.output.report.curves import MOST_POINTS, read_curves
from halfstep.compare.plan.score import ACCURACY


def log(run, lines):
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_without_metrics_has_no_curves(tmp_path):
    assert read_curves(tmp_path / "none", ACCURACY) == {}


def test_values_that_are_not_finite_leave_gaps_and_are_named(tmp_path):
    run = tmp_path / "run"
    losses = [1.0, "nan", 0.5, "inf"]
    log(run, [{"kind": "train", "step": n, "loss": loss} for n, loss in enumerate(losses, 1)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    assert read_curves(run, ACCURACY) == {
        "train_loss": {"x": [1, 2, 3, 4], "y": [1.0, None, 0.5, None], "nonfinite": [2, 4]}
    }


def test_long_curves_are_thinned_and_keep_their_extremes(tmp_path):
    losses = [2 + math.sin(n / 40) for n in range(10_000)]
    losses[1234], losses[7777] = 99.0, -99.0
    lines = [{"kind": "train", "step": n, "loss": loss} for n, loss in enumerate(losses, 1)]
    log(tmp_path / "run", lines)
    curve = read_curves(tmp_path / "run", ACCURACY)["train_loss"]
    assert len(curve["x"]) <= MOST_POINTS + 2
    assert (curve["x"][0], curve["x"][-1]) == (1, 10_000)
    assert curve["x"] == sorted(curve["x"])
    assert curve["y"][curve["x"].index(1235)] == 99.0
    assert curve["y"][curve["x"].index(7778)] == -99.0
