"""A plan from shipped configs: what each cell is trained with, and that devices do not matter."""

import pytest
import torch

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
