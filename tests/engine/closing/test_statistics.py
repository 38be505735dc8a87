"""Running statistics come back from a skipped step, and only from that."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

from engine.tiny import Calls, differences, mlp, with_infinite_gradient
from halfstep.engine import Engine, LossScaleCollapse
from halfstep.engine.closing.statistics import RunningStatistics

INPUTS = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(dict(model.named_buffers()))


def test_statistics_go_back_to_the_start_of_the_window() -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", accumulate=3) as engine:
        before = buffers(model)
        for micro in range(3):
            with engine.autocast():
                output = engine.model(INPUTS + micro)
                if micro == 1:
                    output = with_infinite_gradient(output)
            engine.backward(output.float().mean())
            result = engine.step()
        assert result.skipped
        assert not differences(buffers(model), before)
        for _ in range(3):
            with engine.autocast():
                output = engine.model(INPUTS)
            engine.backward(output.float().mean())
            result = engine.step()
        assert result.stepped
        assert int(model[1].num_batches_tracked) == int(before["1.num_batches_tracked"]) + 3


def test_a_loss_scale_that_collapses_leaves_the_statistics_of_the_last_step_made() -> None:
    model = mlp(norm=True)
    recipe = {"base": "fp16", "loss_scale": {"collapse_after": 2}}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        before = buffers(model)
        for step in range(3):
            with engine.autocast():
                output = with_infinite_gradient(engine.model(INPUTS + step))
            engine.backward(output.float().mean())
            with pytest.raises(LossScaleCollapse) if step == 2 else nullcontext():
                engine.step()
        assert not differences(buffers(model), before)


@pytest.mark.parametrize("struck", [0, 1])
def test_the_statistics_of_a_model_follow_its_own_optimizer(struck: int) -> None:
    """Both backwards first, then both steps: neither step may settle the other's window."""
    models = [mlp(0, norm=True), mlp(1, norm=True)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    before = [buffers(model) for model in models]
    with Engine(models, optimizers, recipe="fp16") as engine:
        for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            with engine.autocast():
                output = model(INPUTS)
                if index == struck:
                    output = with_infinite_gradient(output)
            engine.backward(output.float().mean(), optimizers=[optimizer])
        results = [engine.step(optimizers=[optimizer]) for optimizer in optimizers]
    assert [result.skipped for result in results] == [struck == 0, struck == 1]
    for index, model in enumerate(models):
        assert bool(differences(buffers(model), before[index])) is (index != struck)


def test_a_model_used_in_the_turn_of_another_goes_back_with_that_turn() -> None:
    generator, critic = mlp(0), mlp(1, norm=True)
    head = nn.Linear(3, 6)
    models = [nn.Sequential(generator, head), critic]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    with Engine(models, optimizers, recipe="fp16") as engine:
        before = buffers(critic)
        with engine.autocast():
            output = with_infinite_gradient(critic(models[0](INPUTS)))
        engine.backward(output.float().mean(), optimizers=[optimizers[0]])
        assert engine.step(optimizers=[optimizers[0]]).skipped
        assert not differences(buffers(critic), before)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_compiled_within_its_engine_gets_its_statistics_back(in_place: bool) -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16") as engine:
        compiled = torch.compile(engine.model, backend="eager")
        if in_place:
            engine.model.compile(backend="eager")
            compiled = engine.model
        before = buffers(model)
        for struck in (True, False):
            with engine.autocast():
                output = compiled(INPUTS)
            engine.backward(output.float().mean() * (float("inf") if struck else 1.0))
            assert engine.step().skipped is struck
            assert bool(differences(buffers(model), before)) is not struck


def test_statistics_of_any_format_come_back_bit_for_bit() -> None:
    torch.manual_seed(0)
    layers = [nn.BatchNorm1d(6), nn.BatchNorm1d(6).half(), nn.BatchNorm1d(6, momentum=None)]
    model = nn.ModuleList(layers)
    statistics = RunningStatistics(model)
    for struck in (1.0, 0.0):
        before = buffers(model)
        with statistics.step_going_on():
            for layer in layers:
                layer(torch.randn(4, 6).to(layer.weight.dtype))
        after = buffers(model)
        layers[0].running_mean[0] = after["0.running_mean"][0] = float("nan")
        statistics.settle(torch.tensor(struck))
        left = {name: value.nan_to_num() for name, value in buffers(model).items()}
        wanted = {n: v.nan_to_num() for n, v in (before if struck else after).items()}
        assert not differences(left, wanted)


def test_what_settles_many_layers_is_a_few_kernels() -> None:
    model = nn.Sequential(*(nn.BatchNorm1d(6) for _ in range(20)))
    statistics = RunningStatistics(model)
    model(INPUTS)
    with Calls() as calls:
        statistics.settle(torch.tensor(1.0))
    assert calls.names.count("where") == 2  # one for the counters
    assert len([name for name in calls.names if "copy" in name]) == 2


def test_nothing_is_copied_for_layers_that_only_evaluate() -> None:
    model = mlp(norm=True).eval()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16") as engine:
        engine.model(INPUTS)
        assert engine.state_dict()["statistics"] == [None]
        model.train()
        engine.model(INPUTS)
        assert engine.state_dict()["statistics"] != [None]


def test_a_copy_of_the_model_keeps_its_hands_off_the_original() -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16") as engine:
        twin = copy.deepcopy(model)
        twin(INPUTS)
        with engine.autocast():
            output = with_infinite_gradient(engine.model(INPUTS))
        engine.backward(output.float().mean())
        engine.step()
    assert int(model[1].num_batches_tracked) == 0
    assert int(twin[1].num_batches_tracked) == 1


class Kernels(TorchDispatchMode):
    """Counts operators that compute, that is, all except views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += not (func.is_view or func.overloadpacket is torch.ops.aten.split_with_sizes)
        return result


def test_a_copy_takes_as_many_kernels_for_ten_norms_as_for_one() -> None:
    counts = []
    for norms in (1, 10):
        model = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(norms)])
        statistics = RunningStatistics(model)
        with Kernels() as kernels, statistics.step_going_on():
            pass
        with kernels:
            statistics.settle(torch.ones(()))
        counts.append(kernels.count)
    assert counts[0] == counts[1] < 12


def test_parts_called_outside_the_context_are_covered_until_it_is_used() -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1)) as engine:
        before = buffers(model)
        output = INPUTS
        for layer in model:
            output = layer(output)
        engine.backward(with_infinite_gradient(output).mean())
        assert engine.step().skipped
        assert not differences(buffers(model), before)
        with engine.autocast():
            output = with_infinite_gradient(engine.model(INPUTS))
        assert not any(layer._forward_pre_hooks for layer in model)
        engine.backward(output.mean())
        assert engine.step().skipped
        assert not differences(buffers(model), before)
