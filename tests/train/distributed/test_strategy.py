"""What a config may say of a strategy, and what a process alone makes of it."""

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.after.evaluate import evaluate
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train

CPU = torch.device("cpu")


def test_data_parallel_needs_gpus_and_says_so_before_anything_is_written(tiny, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"needs GPUs, but device is 'cpu'.*=ddp, and run halfstep train --gpus N"
    ):
        train(tiny("distributed.strategy=dp"), run, quiet=True)
    assert not run.exists()


def test_run_of_data_parallel_is_evaluated_without_gpus(tiny, tmp_path):
    train(tiny("epochs=1"), tmp_path, quiet=True)
    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("strategy: ddp", "strategy: dp"))
    assert "strategy: dp" in config.read_text()
    assert evaluate(tmp_path, "last").matches


def test_unknown_strategy_is_refused_with_those_there_are(tiny):
    with pytest.raises(UserError, match=r"strategy.*'ddp', 'fsdp' or 'dp'"):
        tiny("distributed.strategy=zero")


def test_process_alone_takes_no_notice_of_fsdp(tiny):
    with set_up(tiny("distributed.strategy=fsdp", "recipe=bf16-kahan"), CPU).engine as engine:
        assert engine.model is engine.bare_model
        assert not any(hasattr(each, "to_local") for each in engine.model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_data_parallel_is_the_engines_on_gpus(tiny):
    with set_up(tiny("distributed.strategy=dp"), torch.device("cuda")).engine as engine:
        assert isinstance(engine.model, torch.nn.DataParallel)
