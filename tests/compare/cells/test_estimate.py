import pytest

from halfstep.compare.cells.estimate import Running, epochs_done, seconds_left


def test_nothing_known_gives_no_estimate():
    assert seconds_left({}, [Running("fp32", 5.0, 0.0)], ["fp16"]) is None
    assert seconds_left({}, [], ["fp16"]) is None


def test_nothing_to_do_takes_no_time():
    assert seconds_left({}, [], []) == 0.0


def test_a_running_cell_is_extrapolated_from_its_share():
    assert seconds_left({}, [Running("fp32", 5.0, 0.25)], []) == 15.0


def test_waiting_cells_take_as_long_as_others_of_their_recipe():
    durations = {"fp32": [10.0, 20.0], "fp16": [100.0]}
    assert seconds_left(durations, [], ["fp32", "fp16"]) == 115.0


def test_a_recipe_not_seen_yet_takes_the_mean_of_all():
    assert seconds_left({"fp32": [10.0], "fp16": [30.0]}, [], ["bf16"]) == 20.0


def test_the_running_cell_informs_those_that_wait():
    left = seconds_left({"fp32": [10.0]}, [Running("fp16", 50.0, 0.5)], ["fp16"])
    assert left == pytest.approx(50.0 + 100.0)


def test_a_cell_slower_than_expected_has_nothing_left_rather_than_less():
    assert seconds_left({"fp32": [10.0]}, [Running("fp32", 25.0, 0.0)], []) == 0.0


def test_slots_share_the_work_but_not_a_single_cell():
    known = {"fp32": [10.0]}
    assert seconds_left(known, [], ["fp32"] * 4, slots=2) == 20.0
    assert seconds_left(known, [Running("fp32", 2.0, 0.1)], [], slots=4) == 18.0


def test_epochs_are_counted_in_metrics_that_end_in_half_a_line(tmp_path):
    assert epochs_done(tmp_path) == 0
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"kind": "train", "step": 1}\n{"kind": "val", "epoch": 3}\n{"kind": "va')
    assert epochs_done(tmp_path) == 3
