"""A plan from shipped configs: what each cell is trained with, and that devices do not matter."""

import inspect

import pytest
import torch

from halfstep.cli import compare as command
from halfstep.compare.plan.arguments import SEEDS
from halfstep.compare.plan.plan import plan, train_command

TINY = ["data.resolution=8", "model.args={channels: [8, 8, 8, 8]}"]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    monkeypatch.setattr("halfstep.compare.plan.plan.refuse", lambda *_, **__: None)

    def make(recipes="fp32,fp16", seeds="1", options=(), config="digits", **given):
        options = [*TINY, *options]
        return plan(config, recipes=recipes, seeds=seeds, options=options, out=tmp_path, **given)

    return make


def test_points_reach_the_settings_of_their_cells(planned):
    cells = planned(axes=["batch_size=32,64", "optimizer.lr=0.1,0.2"], device="cpu").grid.cells
    found = [(cell.settings["batch_size"], cell.settings["optimizer"]["lr"]) for cell in cells[::2]]
    assert found == [(32, 0.1), (32, 0.2), (64, 0.1), (64, 0.2)]


def test_a_grid_may_vary_a_field_of_every_recipe(planned):
    cells = planned("fp16", axes=["recipe.loss_scale.init=1,1024"], device="cpu").grid.cells
    assert [cell.settings["recipe"]["loss_scale"]["init"] for cell in cells] == [1, 1024]
    assert cells[0].fingerprint != cells[1].fingerprint


def test_the_number_of_devices_changes_no_cell(planned):
    one, two = planned(device="cpu"), planned(devices="cpu,cpu")
    assert two.devices == ("cpu", "cpu")
    assert [a.fingerprint for a in one.grid.cells] == [b.fingerprint for b in two.grid.cells]


def test_a_cpu_trains_as_many_cells_at_a_time_as_have_cores_of_their_own(planned, monkeypatch):
    monkeypatch.setattr("halfstep.compare.plan.slots.processors", lambda: 4)
    monkeypatch.setattr("halfstep.compare.plan.plan.pick_device", lambda _: torch.device("cpu"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def slots(*options, seeds="8", **given):
        return len(planned("fp32", seeds, options, **given).devices)

    assert slots() == 4  # the digits have one thread
    assert slots(seeds="3") == 3
    assert slots("threads=2") == 2
    assert slots("data.workers=1") == 2
    assert slots(device="cpu") == slots(devices="cpu") == slots(processes=2) == 1
    # All cores are the threads of one run, or compiled models stay in one process.
    assert slots("threads=null") == slots("model.compile=true") == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert slots() == 2


def test_a_comparison_has_seeds_that_give_answers_unless_told_otherwise(planned):
    assert len(planned(seeds=None, device="cpu").grid.seeds) == SEEDS > 2
    assert planned(seeds=None, looks="2,9", device="cpu").grid.seeds == tuple(range(9))
    assert f"Default: {SEEDS}." in inspect.getsource(command)


def test_a_cell_is_trained_from_its_own_config_and_goes_on_where_it_was(planned):
    cell = planned(device="cpu").grid.cells[1]
    command = train_command(cell, "cuda:3")
    assert command[2:5] == ["halfstep", "train", str(cell.config_file)]
    assert command[5:] == [
        *("--device", "cuda:3", "--out", str(cell.run_directory), "--resume", "auto")
    ]
    assert cell.settings["recipe"]["name"] == "fp16"


def test_cells_are_looked_into_unless_told_otherwise(planned):
    assert planned(device="cpu").grid.cells[0].settings["probes"]
    plain = planned(device="cpu", options=["probes=false"]).grid.cells[0]
    assert not plain.settings["probes"]


def test_a_config_that_turns_the_inspection_off_is_obeyed(planned, tmp_path):
    config = tmp_path / "plain.yaml"
    config.write_text("base: digits\nprobes: false\n")
    assert not planned(device="cpu", config=str(config)).grid.cells[0].settings["probes"]


def test_the_number_of_processes_is_a_setting_of_the_cell_and_of_its_command(planned):
    one, two = (planned(device="cpu", processes=number).grid.cells[0] for number in (1, 2))
    # Several processes cannot be looked into.
    assert {**one.settings, "probes": False} == two.config
    assert (one.processes, two.processes) == (1, 2)
    assert one.fingerprint == planned(device="cpu").grid.cells[0].fingerprint != two.fingerprint
    assert train_command(two, "cuda") == [*train_command(one, "cuda"), "--processes", "2"]


def test_gpus_are_dealt_out_to_cells_of_several_processes(planned, monkeypatch):
    monkeypatch.setattr("halfstep.compare.plan.plan.pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    plan = planned(devices="0,1,2,3", processes=2)
    assert (plan.devices, plan.grid.device) == (("cuda:0,1", "cuda:2,3"), "cuda")
    assert planned(device="cuda", processes=4).devices == ("cuda",)
    with pytest.raises(ValueError, match="--processes is 8, but torch sees 4 GPUs here"):
        planned(device="cuda", processes=8)
    assert planned(device="cuda", processes=8, here=False).devices == ("cuda",)


def test_the_time_limit_is_in_seconds(planned):
    assert planned(time_limit="30m", device="cpu").time_limit == 1800
    assert planned(device="cpu").time_limit is None


def test_the_margin_is_in_points_and_the_last_look_is_the_number_of_seeds(planned):
    grid = planned(seeds=None, looks="2,4", margin=0.5, device="cpu").grid
    assert (grid.margin, grid.looks, grid.seeds) == (0.005, (2, 4), (0, 1, 2, 3))
    plain = planned(device="cpu", seeds="3").grid
    assert (plain.margin, plain.looks) == (0.01, (3,))
    # Neither changes a run.
    assert grid.cells[0].fingerprint == plain.cells[0].fingerprint


def test_the_checks_are_the_same_recipe_with_other_seeds_and_one_that_loses(planned):
    grid = planned(device="cpu", seeds="2", aa=True, control=True).grid
    assert grid.recipes == ("fp32", "fp16", "fp32-again", "control")
    assert grid.checks == {"fp32-again": "again", "control": "control"}
    fp32, fp16, again, control = grid.cells[:4]
    assert again.settings == {**fp32.settings, "seed": 1_000_000}
    assert (again.seed, again.directory.name) == (0, "fp32-again-seed0")
    scale = control.settings["recipe"]["loss_scale"]
    assert (scale["dynamic"], scale["init"]) == (False, 2.0**-18)
    same = {**fp16.settings["recipe"], "name": "control", "loss_scale": scale}
    assert control.settings["recipe"] == same
    assert [grid.baseline(cell.arm).recipe for cell in grid.cells[:4]] == ["fp32"] * 4


def test_a_single_recipe_may_be_checked_at_every_point_of_a_grid(planned):
    grid = planned("fp16", axes=["batch_size=32,64"], aa=True, device="cpu").grid
    bases = {arm.label: grid.baseline(arm).label for arm in grid.arms}
    assert bases == {
        "fp16 batch_size=32": "fp16 batch_size=32",
        "fp16-again batch_size=32": "fp16 batch_size=32",
        "fp16 batch_size=64": "fp16 batch_size=32",
        "fp16-again batch_size=64": "fp16 batch_size=64",
    }


def test_a_check_that_has_the_name_of_a_recipe_is_refused(planned, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("base: digits\nrecipe: {name: control, base: fp16}\n")
    with pytest.raises(ValueError, match="--control adds a row 'control', which is also a recipe"):
        planned("fp32,control", config=str(config), control=True, device="cpu")
