"""What processes check of saved activations whose bits are chosen; run by `processes.main`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from engine.tiny import through_a_file
from halfstep import recipe
from halfstep.engine import Engine, load_sharded, save_sharded, shard
from mechanisms.activations.nets import batch, net

from .checks_ddp import same_everywhere
from .nets import share

BUDGET = {"base": "fp32", "activation_budget": 0.12}


def check_a_budget_chooses_the_same_everywhere_and_a_resume_keeps_it(
    rank: int, world: int, directory: str
) -> None:
    for how in ("ddp", "fsdp"):
        where = Path(directory) / f"budget-{how}-{world}"
        with _engine(how) as engine:
            _steps(engine, 1, rank, world)
            chosen = _chosen(engine)
            same_everywhere(chosen)
            assert len(set(chosen.values())) > 1
            saved: list[Any] = [None]
            if how == "fsdp":
                save_sharded(where, engine)
            else:
                state = {"model": engine.bare_model.state_dict(), "engine": engine.state_dict()}
                saved = [through_a_file(state)]
            went_on = _steps(engine, 2, rank, world)
        dist.broadcast_object_list(saved)
        with _engine(how) as engine:
            if how == "fsdp":
                load_sharded(where, engine)
            else:
                engine.bare_model.load_state_dict(saved[0]["model"])
                engine.load_state_dict(saved[0]["engine"])
            assert _chosen(engine) == chosen
            # DDP lays its buckets anew after a first step, and more than two terms then add up in
            # another order.
            tolerance = 0.0 if world == 2 else 1e-6
            assert _steps(engine, 2, rank, world) == pytest.approx(went_on, rel=tolerance, abs=0)


def _engine(how: str) -> Engine:
    model = net()
    if how == "fsdp":
        model = shard(model, recipe(BUDGET))
    optimizer = SGD(model.parameters(), lr=0.05)
    return Engine(model, optimizer, recipe=BUDGET, parallel="ddp" if how == "ddp" else None)


def _steps(engine: Engine, steps: int, rank: int, world: int) -> list[float]:
    """Return the losses of this process; those after the first have other groups of large range."""
    # As many images for each process as two have: of fewer, the budget would hold too little.
    images, labels = (share(torch.cat([each] * (world // 2)), rank, world) for each in batch())
    images[:, :, 0, 0] *= 1000**rank
    losses = []
    for _ in range(steps):
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def _chosen(engine: Engine) -> dict[str, int]:
    return dict(engine.state_dict()["techniques"]["BudgetedActivations"]["chosen"])
