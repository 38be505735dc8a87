import json
import shutil
from itertools import pairwise


def test_runs_are_listed_with_their_best_figures(halfstep, run):
    shutil.copytree(run, run.with_name("second"))
    code, out, _ = halfstep("runs")
    assert code == 0
    header, first, second = out.splitlines()
    assert header.split()[:6] == ["run", "config", "recipe", "seed", "status", "best"]
    assert first.split()[:5] == ["digits/fp32-seed0", "digits", "fp32", "0", "finished"]
    assert second.split()[:5] == ["digits/second", "digits", "fp32", "0", "finished"]
    code, out, _ = halfstep("runs", "runs/digits", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["path"] for row in rows] == ["runs/digits/fp32-seed0", "runs/digits/second"]
    assert f"{rows[0]['best_accuracy']:.2%}" in first


def test_epochs_are_those_of_the_run_and_not_that_of_its_best_accuracy(halfstep, run):
    config, summary, metrics = (
        run / name for name in ("config.yaml", "summary.json", "metrics.jsonl")
    )
    config.write_text(config.read_text().replace("epochs: 1\n", "epochs: 4\n"))
    accuracies = {1: 0.5, 2: 0.625, 3: 0.875, 4: 0.75}
    lines = [
        json.dumps({"kind": "val", "step": 6 * epoch, "epoch": epoch, "accuracy": accuracy})
        for epoch, accuracy in accuracies.items()
    ]
    metrics.write_text("\n".join(lines))
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"epochs": 4}))

    def shown():
        header, row = halfstep("runs")[1].splitlines()
        places = [header.index(name) for name in ("best", "at epoch", "final", "epochs", "when")]
        return [row[start:end].strip() for start, end in pairwise(places)]

    assert shown() == ["87.50%", "3", "75.00%", "4/4"]
    metrics.write_text("\n".join(lines[:2]))
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"epochs": 3}))
    assert shown() == ["62.50%", "2", "62.50%", "3/4"], "not every epoch is validated"
    summary.unlink()
    assert shown() == ["62.50%", "2", "62.50%", "2/4"]


def test_no_runs_and_no_folder_are_told_apart(halfstep, tmp_path):
    code, _, err = halfstep("runs")
    assert (code, err.count("\n")) == (2, 1)
    assert "'runs' is not a folder" in err
    (tmp_path / "runs").mkdir()
    code, out, err = halfstep("runs")
    assert (code, out) == (0, "")
    assert "no runs under 'runs'" in err
