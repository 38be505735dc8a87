import sys

import pytest

from halfstep.bench import launch
from halfstep.bench.training_process import write_config
from halfstep.errors import UserError

# Stands for halfstep; its arguments are train CONFIG --out RUN --quiet --processes N.
PROGRAM = """
import pathlib, sys
run = pathlib.Path(sys.argv[4])
run.mkdir()
(run / "metrics.jsonl").write_text(LINE + chr(10))
assert sys.argv[6:] == ["--processes", "2"], sys.argv
"""


def program(tmp_path, line):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("LINE", repr(line)))
    return sys.executable, str(file)


def test_the_time_is_to_the_line_of_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HALFSTEP", program(tmp_path, '{"kind": "train", "step": 1}'))
    for _ in range(2):  # a run leaves nothing that is in the way of the next
        assert launch.seconds_to_first_step(tmp_path / "config.yaml", "torchrun", 2) > 0


def test_a_run_without_a_step_has_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HALFSTEP", program(tmp_path, '{"kind": "val", "step": 1}'))
    with pytest.raises(UserError, match="ended without a training step"):
        launch.seconds_to_first_step(tmp_path / "config.yaml", "torchrun", 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", launch.WAYS)
def test_both_ways_start_a_real_training(tiny, tmp_path, way):
    config = write_config(tiny(), tmp_path, *launch.ONE_STEP)
    assert launch.seconds_to_first_step(config, way, 2) > 0
    assert not (tmp_path / "run").exists()
