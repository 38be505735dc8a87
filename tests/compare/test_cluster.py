"""Cells through Ray, on a cluster of this machine alone; slow, for Ray takes its time to start."""

import sys

import pytest
from rich.console import Console

from halfstep.compare.cluster import parse_place, run_there
from halfstep.compare.comparison import compare
from halfstep.compare.directory import prepare
from halfstep.compare.grid import Plan


def test_a_place_is_ray_with_or_without_an_address():
    assert parse_place("ray") is None
    assert parse_place("ray:10.0.0.1:6379") == "10.0.0.1:6379"
    with pytest.raises(ValueError, match=r"--on is 'slurm'; allowed: ray for this machine"):
        parse_place("slurm")


def test_a_missing_ray_is_named_with_the_extra_that_brings_it(monkeypatch):
    from halfstep.compare.cluster import RayCluster

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'halfstep\[ray\]'"):
        RayCluster(None, "cpu", lambda cell, device: [])


def test_a_node_that_does_not_share_the_directory_says_so(make_grid, monkeypatch):
    monkeypatch.setattr("halfstep.compare.cluster.time.sleep", lambda _: None)
    result = run_there(make_grid(("fp32",)).cells[0], ["true"], None)
    assert "name a directory that all nodes share with --out" in str(result.reason)


def test_a_node_runs_a_cell_as_this_machine_would(make_grid, training):
    cell = make_grid(("fp32",)).cells[0]
    prepare(cell)
    assert run_there(cell, training(cell, "cpu"), None).status == "finished"


@pytest.mark.slow
def test_a_comparison_runs_through_ray(make_grid, training):
    pytest.importorskip("ray", reason="needs the extra 'ray'")
    from halfstep.compare.cluster import RayCluster

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
