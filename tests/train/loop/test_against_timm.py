"""The trainer beside a loop made of timm's own parts: same weights, same batches, same losses."""

import json

import pytest
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import dispatch_clip_grad

from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train

STEPS = 50
EPOCHS = 2
OPTIONS = [
    f"epochs={EPOCHS}",
    f"max_steps={STEPS}",
    "batch_size=32",
    "log_every=1",
    "label_smoothing=0.1",
    "clip_norm=1.0",
]
OPTIMIZERS = {
    "sgd": (
        "optimizer={name: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 1e-2}",
        {"opt": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2},
    ),
    "adamw": (
        "optimizer={name: adamw, lr: 2e-3, weight_decay: 0.05}",
        {"opt": "adamw", "lr": 2e-3, "weight_decay": 0.05},
    ),
}


def timms_losses(config, given):
    """Train with timm's parts alone, from the weights and on the batches of a run of `config`."""
    setup = set_up(config, torch.device("cpu"))
    model = setup.engine.model
    setup.engine.close()
    optimizer = create_optimizer_v2(model, **given)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=1, updates_per_epoch=STEPS, step_on_epochs=False
    )
    criterion = LabelSmoothingCrossEntropy(0.1)
    losses = []
    model.train()
    for epoch in range(1, EPOCHS + 1):
        for images, labels in setup.task.data.train.epoch(epoch):
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
            optimizer.step()
            losses.append(loss.item())
            scheduler.step_update(len(losses))
            if len(losses) == STEPS:
                return losses
    raise AssertionError


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_fifty_losses_are_timms(tiny, tmp_path, name):
    ours, theirs = OPTIMIZERS[name]
    config = tiny(ours, *OPTIONS)
    summary = train(config, tmp_path, quiet=True)
    assert summary.steps == STEPS
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    wanted = timms_losses(config, theirs)
    assert wanted[-1] < 0.8 * wanted[0]  # it learns
    assert losses == pytest.approx(wanted, abs=1e-5, rel=0)
