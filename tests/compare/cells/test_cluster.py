"""Cells through Ray, on a cluster of this machine alone; slow, for Ray takes its time to start."""

import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from halfstep.compare.cells.cluster import parse_place, run_there
from halfstep.compare.cells.directory import prepare
from halfstep.compare.comparison import compare
from halfstep.compare.plan.grid import Plan


def test_a_place_is_ray_with_an_address_or_slurm_with_settings():
    assert parse_place("ray") == ("ray", None, {})
    assert parse_place("ray:10.0.0.1:6379") == ("ray", "10.0.0.1:6379", {})
    assert parse_place("slurm") == ("slurm", None, {})
    given = {"partition": "gpu", "cpus_per_gpu": 8}
    assert parse_place("slurm:partition=gpu,cpus_per_gpu=8") == ("slurm", None, given)
    for wrong in ("kubernetes", "slurm:gpu", "slurm:=8"):
        with pytest.raises(ValueError, match=f"--on is '{wrong}'; allowed: ray for this machine"):
            parse_place(wrong)


def test_a_missing_ray_is_named_with_the_extra_that_brings_it(monkeypatch):
    from halfstep.compare.cells.cluster import RayCluster

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'halfstep\[ray\]'"):
        RayCluster(None, "cpu", lambda cell, device: [])


def test_a_node_that_does_not_share_the_directory_says_so(make_grid, monkeypatch):
    monkeypatch.setattr("halfstep.compare.cells.cluster.time.sleep", lambda _: None)
    result = run_there(make_grid(("fp32",)).cells[0], ["true"], None)
    assert "name a directory that all nodes share with --out" in str(result.reason)


def test_a_node_runs_a_cell_as_this_machine_would(make_grid, training):
    cell = make_grid(("fp32",)).cells[0]
    prepare(cell)
    assert run_there(cell, training(cell, "cpu"), None).status == "finished"


def test_a_node_gives_a_cell_the_variables_that_it_comes_with(make_grid):
    cell = make_grid(("fp32",)).cells[0]
    prepare(cell)
    told = [sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    run_there(cell, told, None, {"OMP_NUM_THREADS": "77"})
    assert (cell.directory / "stdout.log").read_text() == "77\n"


class Nodes:
    """Stands for Ray: nodes with so many GPUs and CPUs each, the last of them gone."""

    def __init__(self, gpus, cpus):
        self.gpus, self.cpus, self.asked = gpus, cpus, []

    def init(self, **_):
        pass

    def shutdown(self):
        pass

    def nodes(self):
        each = [{"GPU": float(g), "CPU": float(self.cpus)} for g in (*self.gpus, 64)]
        return [
            {"Alive": number < len(self.gpus), "Resources": resources}
            for number, resources in enumerate(each)
        ]

    def remote(self, **needs):
        self.asked.append(needs)
        return lambda _: SimpleNamespace(remote=lambda *given: given)


@pytest.mark.parametrize(
    ("device", "processes", "slots", "needs"),
    [
        ("cuda", 1, 7, {"num_gpus": 1}),
        ("cuda", 2, 3, {"num_gpus": 2}),
        ("cpu", 4, 2, {"num_cpus": 4}),
    ],
)
def test_a_cell_asks_for_as_many_devices_of_one_node_as_it_has_processes(
    monkeypatch, make_grid, device, processes, slots, needs
):
    from halfstep.compare.cells.cluster import RayCluster

    ray = Nodes((4, 3), 7)
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = RayCluster(None, device, lambda cell, device: [device], processes=processes)
    assert cluster.slots == (device,) * slots
    _, command, _, environment = cluster.start(make_grid().cells[0], device).reference
    assert command == [device]
    assert environment == ({"OMP_NUM_THREADS": "1"} if device == "cpu" else {})
    assert ray.asked == [{"max_retries": 0, **needs}]


def test_a_cluster_without_nodes_large_enough_is_refused(monkeypatch):
    from halfstep.compare.cells.cluster import RayCluster

    monkeypatch.setitem(sys.modules, "ray", Nodes((4, 3), 7))
    with pytest.raises(ValueError, match=r"no node .* has 5 GPUs .* write --processes 4, or fewer"):
        RayCluster(None, "cuda", lambda cell, device: [], processes=5)
    monkeypatch.setitem(sys.modules, "ray", Nodes((0,), 7))
    with pytest.raises(ValueError, match="the cluster has no GPU; write --device cpu"):
        RayCluster(None, "cuda", lambda cell, device: [], processes=2)


@pytest.mark.slow
def test_a_comparison_runs_through_ray(make_grid, training):
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    from halfstep.compare.cells.cluster import RayCluster

    training.behave(fp16="segfaults")
    grid = make_grid(("fp32", "fp16"), (0, 1))
    cluster = RayCluster(None, "cpu", training, num_cpus=1, include_dashboard=False)
    try:
        assert cluster.slots == ("cpu",)
        plan = Plan(grid, grid.cells[0].directory.parent, ("cpu",))
        results = compare(plan, training, Console(quiet=True), place=cluster)
    finally:
        cluster.close()
    assert [result.status for result in results] == ["finished", "crashed"] * 2
    assert results[1].reason == "killed by SIGSEGV"
    assert training.ran == ["fp32 0", "fp16 0", "fp32 1", "fp16 1"]
