import json
import shutil


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


def test_no_runs_and_no_folder_are_told_apart(halfstep, tmp_path):
    code, _, err = halfstep("runs")
    assert (code, err.count("\n")) == (2, 1)
    assert "'runs' is not a folder" in err
    (tmp_path / "runs").mkdir()
    code, out, err = halfstep("runs")
    assert (code, out) == (0, "")
    assert "no runs under 'runs'" in err
