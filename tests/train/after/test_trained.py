import dataclasses

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.after.run_config import config_of
from halfstep.train.after.trained import open_run
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint

CPU = torch.device("cpu")


def test_model_has_the_validated_weights_and_what_belongs_to_them(pictures_run):
    trained = open_run(pictures_run)
    stored = checkpoint.load(checkpoint.path(pictures_run, "best"))
    state = trained.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in stored.averaged.items())
    assert not torch.equal(state["fc.weight"], stored.model["fc.weight"])
    assert trained.classes == ("dark", "light")
    assert trained.image_shape == tuple(stored.preprocessing["image_shape"])
    assert not trained.model.training


def test_logits_are_those_of_the_runs_own_validation(pictures_run):
    trained = open_run(pictures_run)
    setup = set_up(config_of(pictures_run), CPU, weights=trained.stored.weights)
    images, labels = next(iter(setup.task.data.val.epoch()))
    prepared, _ = setup.task.data.prepare(images, labels, device=CPU, train=False)
    with setup.engine as engine, engine.evaluating():
        wanted = engine.model(prepared)
    assert wanted.dtype == torch.bfloat16
    with trained.classifier(CPU) as classify:
        found = classify(images)
    assert torch.equal(found, wanted.float())


def test_weights_to_start_from_need_not_be_there_any_more(pictures, tmp_path):
    config = pictures("data.workers=0", "epochs=1")
    start = tmp_path / "start.pth"
    with set_up(config, CPU).engine as engine:
        torch.save(engine.model.state_dict(), start)
    train(
        pictures("data.workers=0", "epochs=1", f"model.weights={start}"),
        tmp_path / "run",
        quiet=True,
    )
    start.unlink()
    assert open_run(tmp_path / "run").classes == ("dark", "light")


def test_weights_of_another_model_are_refused_in_one_line(pictures, tmp_path):
    train(pictures("data.workers=0", "epochs=1"), tmp_path, quiet=True)
    file = checkpoint.path(tmp_path, "best")
    stored = checkpoint.load(file)
    weights = {name: value for name, value in stored.weights.items() if name != "fc.bias"}
    checkpoint.save(file, dataclasses.replace(stored, model=weights, averaged=None))
    with pytest.raises(UserError, match=r"do not fit its model .*fc\.bias") as caught:
        open_run(tmp_path)
    assert "\n" not in str(caught.value)
