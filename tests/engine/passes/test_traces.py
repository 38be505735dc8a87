"""A loss computed outside of autocast is noticed at the first backward, and no other loss is."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import LBFGS, SGD
from torch.utils.checkpoint import checkpoint

from engine.tiny import Calls, mlp
from halfstep.engine import Engine, EngineWarning
from halfstep.engine.passes.traces import other_format_of_products

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
WIDE = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))


def engine_of(model: nn.Module, recipe: str = "bf16", **settings) -> Engine:
    return Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe, **settings)


def square(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


@pytest.mark.parametrize(
    "recipe", ["fp16", "fp16-acc16", "bf16", "o1", "fp8", "fp8-delayed", "nvfp4"]
)
@pytest.mark.parametrize("layer", [nn.Linear(32, 16), nn.Conv1d(16, 16, 1), nn.RNN(32, 16)])
def test_a_loop_without_autocast_is_warned_once(layer, recipe: str) -> None:
    inputs = WIDE.view(2, 16, -1) if isinstance(layer, nn.Conv1d) else WIDE
    with engine_of(layer, recipe) as engine:
        for first in (True, False, False):
            output = engine.model(inputs)
            loss = square(output[0] if isinstance(output, tuple) else output)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", EngineWarning)
                engine.backward(loss)
            assert len(caught) == first
            if first:
                assert "in fp32; write `with engine.autocast(): loss =" in str(caught[0].message)
                assert caught[0].filename == __file__
            engine.step()


def test_another_format_than_the_recipes_is_named() -> None:
    with engine_of(mlp(), "fp16") as engine:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = square(engine.model(INPUTS))
        with pytest.warns(EngineWarning, match="computes in fp16 .* outside of it, in bf16"):
            engine.backward(loss)


@pytest.fixture
def _silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineWarning)
        yield


@pytest.mark.usefixtures("_silent")
class TestNoFalseAlarm:
    @pytest.mark.parametrize("recipe", ["fp32", "tf32", "o2", "half", "bf16-sr"])
    def test_of_recipes_without_autocast(self, recipe: str) -> None:
        with engine_of(mlp(), recipe) as engine:
            engine.backward(square(engine.model(INPUTS)))

    @pytest.mark.parametrize("cast_at_the_end", [False, True])
    def test_under_the_callers_own_autocast(self, cast_at_the_end: bool) -> None:
        with engine_of(mlp()) as engine:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = engine.model(INPUTS)
                loss = square(output.float() if cast_at_the_end else output)
            engine.backward(loss)

    def test_where_the_last_of_several_forwards_is_outside(self) -> None:
        model, head = mlp(), nn.Linear(3, 1)
        params = [*model.parameters(), *head.parameters()]
        with Engine([model, head], SGD(params, lr=0.1), recipe="bf16") as engine:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                features = model(INPUTS)
            engine.backward(square(head(features.float())))
            with engine.autocast():
                features = model(INPUTS)
            engine.backward(square(head(features.float())))

    def test_of_a_model_that_never_multiplies(self) -> None:
        with engine_of(nn.Sequential(nn.Embedding(7, 6), nn.LayerNorm(6))) as engine:
            engine.backward(square(engine.model(torch.tensor([1, 2]))))

    def test_of_a_model_in_fp64(self) -> None:
        layer = nn.Linear(6, 3).double()
        output = layer(INPUTS.double())
        assert other_format_of_products(output.sum(), torch.bfloat16) is None

    def test_of_a_compiled_model(self) -> None:
        model = torch.compile(mlp(), backend="aot_eager")
        with engine_of(model) as engine:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = square(engine.model(INPUTS))
            engine.backward(loss)

    def test_of_gradients_and_penalties(self) -> None:
        with engine_of(mlp()) as engine:
            leaf = INPUTS.clone().requires_grad_()
            engine.grad(engine.model(leaf).sum(), leaf)
            with engine.autocast():
                output = engine.model(leaf)
            (grad,) = engine.grad(output.float().sum(), leaf, create_graph=True)
            engine.backward(square(grad))

    def test_of_evaluation(self) -> None:
        with engine_of(mlp()) as engine:
            with engine.evaluating():
                engine.model(INPUTS)
            with engine.autocast():
                loss = square(engine.model(INPUTS))
            engine.backward(loss)

    def test_of_a_closure(self) -> None:
        model = mlp()
        with Engine(model, LBFGS(model.parameters(), max_iter=2), recipe="bf16") as engine:

            def closure() -> float:
                engine.zero_grad()
                with engine.autocast():
                    loss = square(engine.model(INPUTS))
                engine.backward(loss)
                return float(loss.detach())

            engine.step(closure=closure)

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_of_checkpointed_layers_which_are_not_computed_again(self, use_reentrant) -> None:
        calls = 0

        def counted(inputs: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return model(inputs)

        model = mlp()
        leaf = INPUTS.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = checkpoint(counted, leaf, use_reentrant=use_reentrant)
        assert other_format_of_products(square(output), torch.bfloat16) is None
        assert calls == 1

    def test_of_ddp(self, tmp_path: Path) -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
        )
        try:
            with engine_of(mlp(), parallel="ddp") as engine:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = square(engine.model(INPUTS))
                engine.backward(loss)
        finally:
            dist.destroy_process_group()


def test_looking_runs_no_operator() -> None:
    loss = square(mlp()(INPUTS))
    with Calls() as calls:
        assert other_format_of_products(loss, torch.bfloat16) == torch.float32
    assert calls.names == []
