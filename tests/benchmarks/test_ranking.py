"""The tasks that recipes are ranked on can still be built and trained."""

import math
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def every_task():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        from ranking.further import further
        from ranking.held_out import held_out
        from ranking.tasks import tasks
        from ranking.third import third
        from ranking.unseen import unseen
    return {made.__name__: made() for made in (tasks, further, held_out, unseen, third)}


def test_each_file_has_as_many_tasks_as_it_says(every_task):
    counts = {file: len(tasks) for file, tasks in every_task.items()}
    assert counts == {"tasks": 20, "further": 12, "held_out": 20, "unseen": 20, "third": 20}
    names = [task.name for tasks in every_task.values() for task in tasks]
    assert len(set(names)) == len(names)
    for file in ("unseen", "third"):
        assert all(task.name.endswith(f", {file}") for task in every_task[file])


def test_tasks_train_with_each_parameter_reached(every_task):
    for task in every_task["unseen"] + every_task["third"]:
        torch.manual_seed(0)
        model = task.model()
        optimizer = task.optimizer(model)
        batch = task.batches(0, 1)[0]
        losses = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        unreached = [name for name, each in model.named_parameters() if each.grad is None]
        assert not unreached, task.name
        assert all(map(math.isfinite, losses)), task.name
        # Adaptive optimizers and momentum may overshoot on the way.
        assert min(losses[6:]) < losses[0], task.name
