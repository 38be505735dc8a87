"""The doors for Lightning: the engine's own numbers in its Trainer, and doctor's diagnosis."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from halfstep import Engine

pytestmark = [pytest.mark.peers, pytest.mark.slow]
pl = pytest.importorskip("lightning.pytorch")
door = pytest.importorskip("halfstep.lightning")

BATCH, COUNT = 6, 36


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(COUNT, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, _):
        inputs, labels = batch
        return cross_entropy(self.net(inputs).float(), labels)

    def validation_step(self, batch, _):
        assert not self.net.training
        inputs, labels = batch
        self.log("val_loss", cross_entropy(self.net(inputs).float(), labels))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer(tmp_path, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(
        accelerator="cpu", default_root_dir=tmp_path, **{"max_epochs": 2, **quiet, **settings}
    )


def loader():
    return DataLoader(TensorDataset(*data()), BATCH)


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16", "half-bn32", "bf16-sr"])
def test_a_trainer_ends_at_the_weights_of_the_engines_own_loop(recipe, tmp_path):
    module = Module()
    plugin = door.RecipePrecision(recipe)
    fit = trainer(tmp_path, plugins=plugin, accumulate_grad_batches=2, gradient_clip_val=0.5)
    fit.fit(module, loader(), loader())
    assert fit.global_step == 6
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Engine(model, optimizer, recipe=recipe, clip_norm=0.5) as engine:
        for _ in range(2):
            batches = zip(*(part.split(BATCH) for part in data()), strict=True)
            for number, (inputs, labels) in enumerate(batches, 1):
                with engine.autocast():
                    loss = cross_entropy(engine.model(inputs).float(), labels)
                engine.backward(loss / 2)
                if number % 2 == 0:
                    engine.step()
    for mine, its in zip(
        model.state_dict().values(), module.net.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, its)


def test_fp32_is_lightnings_own(tmp_path):
    mine, its = Module(), Module()
    trainer(tmp_path, plugins=door.RecipePrecision("fp32")).fit(mine, loader())
    trainer(tmp_path).fit(its, loader())
    for one, other in zip(mine.parameters(), its.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_resumes_bit_for_bit(tmp_path):
    whole = Module()
    trainer(tmp_path, plugins=door.RecipePrecision("fp16")).fit(whole, loader())
    first = trainer(tmp_path, plugins=door.RecipePrecision("fp16"), max_epochs=1)
    first.fit(Module(), loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    rest = Module()
    trainer(tmp_path, plugins=door.RecipePrecision("fp16")).fit(
        rest, loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=False
    )
    for one, other in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(one, other)


def test_modules_that_step_by_hand_are_refused(tmp_path):
    class ByHand(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(ValueError, match=r"use halfstep\.Engine in training_step"):
        trainer(tmp_path, plugins=door.RecipePrecision("fp16")).fit(ByHand(), loader())


def test_a_watch_names_the_cause_of_a_nan(tmp_path):
    class Broken(Module):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            return loss * torch.log(torch.zeros(())) if index == 2 else loss

    watching = door.WatchCallback(quiet=True)
    trainer(tmp_path, callbacks=watching).fit(Broken(), loader())
    assert watching.diagnosis.verdicts
    healthy = door.WatchCallback(quiet=True)
    trainer(tmp_path, callbacks=healthy).fit(Module(), loader())
    assert not healthy.diagnosis.verdicts


@pytest.mark.parametrize("recipe", ["fp16", "bf16-sr"])
def test_the_example_learns(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(__file__).parents[1] / "examples" / "lightning_recipe.py"
    assert runpy.run_path(str(path))["main"](recipe) > 0.85
