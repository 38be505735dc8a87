"""Compressed activations beside other ways to train."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from halfstep import Engine, recipe
from halfstep.engine import shard
from halfstep.engine.thread_state import ThreadState

from .nets import Net, batch, cosine, gradients, net, saved

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_run_again_as_they_ran(reentrant):
    class Checkpointed(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            features = functional.relu(self.norm(self.stem(images)))
            features = checkpoint(self.block, features, use_reentrant=reentrant)
            rows = self.widen(self.rows(features.flatten(2)))
            return self.head(functional.gelu(rows).flatten(1))

        def block(self, features: torch.Tensor) -> torch.Tensor:
            features = functional.max_pool2d(functional.relu(features), 2)
            return self.left(features) + self.right(features)

    torch.manual_seed(0)
    model = Checkpointed()
    loss, (exact,) = gradients(model, "fp32")
    found, (rounded,) = gradients(model, "fp32+act8")
    assert found == loss
    assert cosine(exact, rounded) > 0.9999


@pytest.fixture
def one_process() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_gradients_are_near_in_several_processes(how):
    images, labels = batch()
    exact = gradients(net(), "fp32")[1][0]
    model = net()
    if how == "fsdp":
        model = shard(model, recipe("fp32+act8"))
    parallel = "ddp" if how == "ddp" else None
    optimizer = SGD(model.parameters(), lr=0.0)
    with Engine(model, optimizer, recipe="fp32+act8", parallel=parallel) as engine:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        kept = saved()
        assert {each.packed.bits for each in kept if each.packed} == {8}
        assert not any(each.whole for each in kept)  # no parameters, gathered or not
        engine.backward(loss)
        found = [
            getattr(p.grad, "full_tensor", lambda grad=p.grad: grad)() for p in model.parameters()
        ]
        engine.step()
    assert cosine(exact, torch.cat([each.flatten() for each in found]).double()) > 0.9999


def test_compiled_models_are_refused_whenever_they_were_compiled():
    for compiled_first in (True, False):
        model = nn.Sequential(nn.Linear(128, 128))
        if compiled_first:
            model.compile(backend="eager")
        with Engine(model, SGD(model.parameters(), lr=0.1), recipe="act4") as engine:
            model.compile(backend="eager")
            with pytest.raises(ValueError, match="this one is compiled"), engine.autocast():
                pass


def loss_of_two_threads(engine: Engine) -> torch.Tensor:
    """As `DataParallel` runs replicas: in threads that enter the caller's state again."""
    images, labels = batch()
    results: dict[int, torch.Tensor] = {}
    with engine.autocast():
        state = ThreadState("cpu")

        def run(part: int) -> None:
            results[part] = state.carried_by(engine.model)(images)

        threads = [threading.Thread(target=run, args=(part,)) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(cross_entropy(results[part], labels) for part in range(2)) / 2


def test_threads_of_replicas_compress_what_they_save():
    model = net()
    exact = gradients(model, "fp32")[1][0]
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe="fp32+act8") as engine:
        loss = loss_of_two_threads(engine)
        assert {each.packed.bits for each in saved() if each.packed} == {8}
        engine.backward(loss)
        found = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
        engine.step()
    assert cosine(exact, found) > 0.9999


def test_threads_of_replicas_are_measured_and_keep_the_bits_that_are_chosen():
    model = net()
    exact = gradients(model, "fp32")[1][0]
    spec = {"base": "fp32", "activation_budget": 0.2}
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=spec) as engine:
        for _ in range(2):
            loss = loss_of_two_threads(engine)
            packed = [each.packed for each in saved() if each.packed]
            engine.backward(loss)
            found = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
            engine.step()
        chosen = engine.state_dict()["techniques"]["BudgetedActivations"]["chosen"]
    assert sorted({each.bits for each in packed}) == sorted(set(chosen.values()))
    assert len(set(chosen.values())) > 1
    assert cosine(exact, found) > 0.9


def test_a_module_that_is_used_several_times_has_the_sum_of_its_gradients():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(128, 128)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                values = functional.gelu(self.layer(values))
            return values

    torch.manual_seed(0)
    model, values = Twice(), torch.randn(64, 128)
    found = []
    for spec in ("fp32", "fp32+act8", {"base": "fp32", "activations": {"layer": 8}}):
        model.zero_grad()
        with Engine(model, SGD(model.parameters(), lr=0.0), recipe=spec) as engine:
            with engine.autocast():
                loss = engine.model(values).square().mean()
            engine.backward(loss)
            found.append(model.layer.weight.grad.flatten().double())
            engine.step()
    assert cosine(found[0], found[1]) > 0.9999
    assert cosine(found[0], found[2]) > 0.9999
