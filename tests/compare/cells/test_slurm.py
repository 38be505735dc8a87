"""Cells as jobs of Slurm; submitit's own local executor stands for a cluster."""

import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from halfstep.compare.cells.slurm import SlurmCluster
from halfstep.compare.comparison import compare
from halfstep.compare.plan.grid import Plan


class Jobs:
    """Stands for submitit: keeps what it is asked for."""

    def __init__(self, refusal=None):
        self.asked, self.refusal = {}, refusal

    def AutoExecutor(self, folder, cluster):  # noqa: N802  # submitit's name
        self.asked |= {"folder": folder.name, "cluster": cluster}
        return SimpleNamespace(update_parameters=self.asked.update, submit=self.submit)

    def submit(self, function, *given):
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.asked["given"] = given[1:]
        return SimpleNamespace(job_id="7")


@pytest.mark.parametrize(
    ("device", "needs"), [("cuda", {"gpus_per_node": 2}), ("cpu", {"cpus_per_task": 2})]
)
def test_a_job_asks_for_what_a_cell_needs(monkeypatch, make_grid, tmp_path, device, needs):
    jobs = Jobs()
    monkeypatch.setitem(sys.modules, "submitit", jobs)
    cluster = SlurmCluster(
        tmp_path,
        device,
        lambda cell, slot: [slot],
        processes=2,
        time_limit=61.0,
        settings={"partition": "gpu"},
    )
    cluster.start(make_grid().cells[0], device)
    threads = {"OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    assert jobs.asked.pop("given") == ([device], 61.0, threads)
    assert jobs.asked == {
        "folder": ".slurm",
        "cluster": "slurm",
        "name": "halfstep",
        "nodes": 1,
        "tasks_per_node": 1,
        "timeout_min": 12,
        "slurm_partition": "gpu",
        **needs,
    }


def test_a_job_that_slurm_refuses_is_one_line(monkeypatch, make_grid, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", Jobs("sbatch: error: invalid partition"))
    cluster = SlurmCluster(tmp_path, "cpu", lambda cell, slot: [slot])
    with pytest.raises(ValueError, match="--on slurm: sbatch: error: invalid partition"):
        cluster.start(make_grid().cells[0], "cpu")


def test_a_missing_submitit_is_named_with_the_extra_that_brings_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'halfstep\[slurm\]'"):
        SlurmCluster(tmp_path, "cpu", lambda cell, slot: [])


def test_a_machine_without_slurm_and_unknown_settings_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra 'slurm'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="--on slurm: Could not detect"):
        SlurmCluster(tmp_path, "cpu", lambda cell, slot: [])
    with pytest.raises(ValueError, match="Unknown argument 'partitoin'"):
        SlurmCluster(
            tmp_path, "cpu", lambda cell, slot: [], settings={"partitoin": "x"}, kind="local"
        )


@pytest.mark.slow
def test_a_comparison_runs_as_jobs(make_grid, training, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra 'slurm'")
    monkeypatch.setattr("halfstep.compare.cells.slurm._POLL_SECONDS", 0.2)
    training.behave(fp16="segfaults")
    grid = make_grid(("fp32", "fp16"), (0, 1))
    directory = grid.cells[0].directory.parent
    cluster = SlurmCluster(directory, "cpu", training, time_limit=300.0, kind="local")
    results = compare(Plan(grid, directory, ("cpu",)), training, Console(quiet=True), place=cluster)
    assert [result.status for result in results] == ["finished", "crashed"] * 2
    assert results[1].reason == "killed by SIGSEGV"
    assert sorted(training.ran) == ["fp16 0", "fp16 1", "fp32 0", "fp32 1"]
