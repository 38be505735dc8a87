import signal
import sys
import time

import pytest

from halfstep.bench.training_process import training, write_config
from halfstep.errors import UserError
from halfstep.train.config.files import load


def test_what_is_timed_trains_as_the_config_says_and_writes_little(tiny, tmp_path):
    config = tiny("probes=true", "seed=5", "early_stopping={patience: 1}", recipe="fp16")
    timed = load(str(write_config(config, tmp_path, "max_steps=3")))
    assert (timed.name, timed.seed, timed.build_recipe()) == ("tiny", 5, config.build_recipe())
    assert (timed.model, timed.optimizer) == (config.model, config.optimizer)
    assert timed.max_steps == 3
    assert timed.tracking == ()
    assert not timed.probes
    assert timed.data.val.limit == 8
    assert timed.data.train == config.data.train


def test_a_run_that_fails_says_why(tmp_path):
    program = "import sys; sys.exit('error: no space left in the cupboard')"
    with (
        pytest.raises(UserError, match=r"failed: exit code 1: error: no space left"),
        training([sys.executable, "-c", program], tmp_path, {}),
    ):
        pass


def test_a_run_has_variables_of_its_own_and_ends_with_the_block(tmp_path):
    program = "import os, time; print(os.environ['OMP_NUM_THREADS'], flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program]

    def interrupted():
        with training(command, tmp_path, {"OMP_NUM_THREADS": "7"}) as process:
            started.append(process)
            while not (tmp_path / "stdout.log").read_text():
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)  # as a terminal does
            raise KeyboardInterrupt

    started = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "stdout.log").read_text() == "7\n"
    assert started[0].poll() is not None
