"""What a loop may get wrong: an error or a warning that says what to write."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import LBFGS, SGD, Adadelta
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from halfstep.engine import EMA, Engine, EngineWarning
from halfstep.recipe import Recipe

from .tiny import differences, mlp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1)


def loss_of(engine: Engine) -> torch.Tensor:
    with engine.autocast():
        loss: torch.Tensor = engine.models[0](INPUTS).float().square().mean()
    return loss


def test_a_step_past_the_engine_is_refused_until_it_closes() -> None:
    model = mlp()
    optimizer = sgd(model)
    with Engine(model, optimizer) as engine:
        engine.backward(loss_of(engine))
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(RuntimeError, match=r"SGD.step\(\) was called directly, but the engine"):
            optimizer.step()
        assert not differences(model.state_dict(), before)
        assert engine.step().stepped
    optimizer.step()


@pytest.mark.parametrize("recipe", ["fp32", "fp16"])
def test_a_second_step_without_a_backward_is_refused(recipe: str) -> None:
    model = mlp()
    with Engine(model, sgd(model), recipe=recipe, accumulate=2) as engine:
        for _ in range(2):
            engine.backward(loss_of(engine))
            engine.step()
            with pytest.raises(RuntimeError, match=r"without an engine\.backward\(\)"):
                engine.step()


def test_backward_inside_autocast_warns() -> None:
    model = mlp()
    with Engine(model, sgd(model), recipe="bf16") as engine, engine.autocast():
        loss = engine.model(INPUTS).mean()
        with pytest.warns(EngineWarning, match="inside autocast") as caught:
            engine.backward(loss)
    assert caught[0].filename == __file__


def test_a_warning_about_the_engine_that_no_test_expects_fails_it() -> None:
    with pytest.raises(EngineWarning, match="as an error"):
        warnings.warn("as an error", EngineWarning, stacklevel=1)


@pytest.mark.parametrize("recipe", ["fp16", "o2"])
def test_clipping_scaled_gradients_by_hand_warns(recipe: str) -> None:
    model = mlp()
    with Engine(model, sgd(model), recipe=recipe) as engine:
        engine.backward(loss_of(engine))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.warns(EngineWarning, match=r"Engine\(\.\.\., clip_norm=1\.0\)"):
            engine.step()


def test_a_backward_past_the_engine_warns() -> None:
    model = mlp()
    with Engine(model, sgd(model), recipe="fp16") as engine:
        engine.backward(loss_of(engine))
        loss_of(engine).backward()
        with pytest.warns(EngineWarning, match="gradients changed between"):
            engine.step()


def test_gradients_may_be_changed_where_nothing_scales_them() -> None:
    model = mlp()
    with Engine(model, sgd(model), recipe="bf16") as engine:
        engine.backward(loss_of(engine))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        engine.step()


def test_a_parameter_with_two_owners_is_refused() -> None:
    model = mlp()
    optimizers = [SGD(model[0].parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)]
    with pytest.raises(ValueError, match=r"\(8, 6\) belongs to optimizers 0 and 1"):
        Engine(model, optimizers)
    with Engine(model, optimizers[0]):
        pass


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer 0 holds no parameter of the models"):
        Engine(mlp(), sgd(mlp()))


def test_a_closed_engine_trains_no_more() -> None:
    model = mlp()
    engine = Engine(model, sgd(model))
    loss = loss_of(engine)
    engine.close()
    with pytest.raises(RuntimeError, match="this engine is closed; build a new Engine"):
        engine.backward(loss)
    with pytest.raises(RuntimeError, match="this engine is closed; build a new Engine"):
        engine.step()


def test_an_engine_that_is_dropped_lets_go_of_its_optimizer() -> None:
    model = mlp()
    optimizer = sgd(model)
    engine = Engine(model, optimizer)
    del engine
    gc.collect()
    with Engine(model, optimizer) as engine:
        engine.backward(loss_of(engine))
        assert engine.step().stepped


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"recipe": 5}, "recipe is 5; allowed: a name"),
        ({"average": 0.999}, r"average is 0.999; allowed: EMA\(0.999\)"),
        ({"accumulate": "4"}, "accumulate is '4'; allowed: 1 or more"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(given, message) -> None:
    model = mlp()
    with pytest.raises((TypeError, ValueError), match=message):
        Engine(model, sgd(model), **given)
    Engine(model, sgd(model), scheduler=None).close()


def test_gradients_dropped_within_a_window_are_noticed() -> None:
    model = mlp()
    with Engine(model, sgd(model), accumulate=2) as engine:
        engine.backward(loss_of(engine))
        engine.step()
        engine.optimizer.zero_grad()
        with pytest.warns(EngineWarning, match="zero_grad"):
            engine.backward(loss_of(engine))


def test_two_engines_over_one_optimizer_are_refused() -> None:
    model = mlp()
    optimizer = sgd(model)
    first = Engine(model, optimizer)
    with pytest.raises(ValueError, match="this SGD belongs to another engine; call close"):
        Engine(model, optimizer)
    first.close()
    with Engine(model, optimizer):
        first.close()  # A second time: not its own any more.
        with pytest.raises(ValueError, match="belongs to another engine"):
            Engine(model, optimizer)


@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": "bf16-sr"},
        {"recipe": "no such"},
        {"clip_norm": 1.0, "clip_value": 1.0},
        {"clip_norm": 0.0},
        {"accumulate": 0},
    ],
)
def test_a_failed_construction_leaves_model_and_optimizer_usable(settings) -> None:
    model = mlp()
    optimizer = Adadelta(model.parameters())
    held = list(optimizer.param_groups[0]["params"])
    with pytest.raises((TypeError, ValueError)):
        Engine(model, optimizer, **settings)
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], held, strict=True))
    assert not differences(model.state_dict(), mlp().state_dict())
    model(INPUTS).sum().backward()
    optimizer.step()
    with Engine(model, optimizer, recipe="fp16"):
        pass


def test_a_second_optimizer_that_is_owned_frees_the_first() -> None:
    models = [mlp(0), mlp(1)]
    optimizers = [sgd(model) for model in models]
    with Engine(models[1], optimizers[1]):
        with pytest.raises(ValueError, match="belongs to another engine"):
            Engine(models, optimizers)
        with Engine(models[0], optimizers[0]):
            pass


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
class TestDistributed:
    @pytest.mark.parametrize("recipe", ["half", "o2", "bf16-sr"])
    def test_a_wrapped_model_is_refused_where_parameters_change(self, recipe: str) -> None:
        wrapped = DistributedDataParallel(mlp())
        with pytest.raises(ValueError, match=r"Engine\(model, \.\.\., parallel='ddp'\)"):
            Engine(wrapped, sgd(wrapped), recipe=recipe)

    def test_gradients_are_reduced_only_where_a_window_closes(self) -> None:
        model = DistributedDataParallel(mlp())
        seen = []
        with Engine(model, sgd(model), recipe="fp16", accumulate=3) as engine:
            for _ in engine.batches(range(7)):
                engine.backward(loss_of(engine))
                seen.append(model.require_backward_grad_sync)
                engine.step()
        assert seen == [False, False, True] * 2 + [True]


def test_other_wrappers_are_named_too() -> None:
    for wrapped, name in (
        (torch.compile(mlp(), backend="eager"), r"torch\.compile"),
        (DataParallel(mlp()), "DataParallel"),
    ):
        with pytest.raises(ValueError, match=name):
            Engine(wrapped, sgd(wrapped), recipe="o2")
        with Engine(wrapped, sgd(wrapped), recipe="fp16"):
            pass


@pytest.mark.parametrize("recipe", ["fp16", "o2", "half", "bf16-true"])
def test_lbfgs_is_refused_under_scaling_and_half_parameters(recipe: str) -> None:
    model = mlp()
    with pytest.raises(TypeError, match=r"LBFGS evaluates the loss inside its step.*recipe='fp32'"):
        Engine(model, LBFGS(model.parameters()), recipe=recipe)


def test_lbfgs_past_the_engine_is_told_of_the_closure() -> None:
    model = mlp()
    with Engine(model, LBFGS(model.parameters())) as engine:
        words = r"write engine\.step\(closure=closure\), where closure\(\) calls engine\.zero_grad"
        with pytest.raises(
            RuntimeError, match=f"LBFGS.step.. was called directly, but the engine.*{words}"
        ):
            engine.optimizer.step(lambda: 0.0)
        engine.backward(loss_of(engine))
        with pytest.raises(TypeError, match=f"LBFGS evaluates the loss inside its step; {words}"):
            engine.step()


def test_lbfgs_works_under_fp32_by_a_closure() -> None:
    targets = torch.ones(4, 3)
    plain = mlp()
    optimizer = LBFGS(plain.parameters(), max_iter=5)

    def plain_closure() -> float:
        optimizer.zero_grad()
        loss = mse_loss(plain(INPUTS), targets)
        loss.backward()
        return float(loss.detach())

    model = mlp()
    with Engine(model, LBFGS(model.parameters(), max_iter=5), average=EMA(0.5)) as engine:
        start = engine.averaged_state_dict()["0.weight"].clone()

        def closure() -> float:
            engine.zero_grad()
            loss = mse_loss(engine.model(INPUTS), targets)
            engine.backward(loss)
            return float(loss.detach())

        for _ in range(3):
            optimizer.step(plain_closure)
            result = engine.step(closure=closure)
            assert result.stepped
        assert engine.steps == 3
        assert not differences(model.state_dict(), plain.state_dict())
        assert not torch.equal(engine.averaged_state_dict()["0.weight"], start)


@pytest.mark.parametrize("settings", [{"recipe": "fp16"}, {"accumulate": 2}, {"clip_norm": 1.0}])
def test_a_closure_is_refused_where_it_could_not_be_carried_out(settings) -> None:
    model = mlp()
    with (
        Engine(model, sgd(model), **settings) as engine,
        pytest.raises(TypeError, match=r"closure=\.\.\.\) works for one optimizer"),
    ):
        engine.step(closure=lambda: 0.0)


def test_schedulers_that_could_not_follow_are_refused() -> None:
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(TypeError, match=r"call scheduler\.step\(metric\) yourself"):
        Engine(model, optimizer, scheduler=ReduceLROnPlateau(optimizer))
    with pytest.raises(ValueError, match="StepLR belongs to an optimizer that this engine"):
        Engine(model, optimizer, scheduler=StepLR(sgd(mlp()), 1))


@pytest.mark.parametrize("clipping", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}])
def test_sparse_gradients_train_under_autocast(clipping) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(7, 6, sparse=True), nn.Linear(6, 3))

    tokens = torch.tensor([1, 2, 2, 6])
    model, exact = net(), net()
    exact(tokens).square().mean().backward()
    with Engine(
        model, SGD(model.parameters(), lr=1.0), recipe="fp16", accumulate=2, **clipping
    ) as engine:
        for _ in range(2):
            with engine.autocast():
                loss = engine.model(tokens).float().square().mean()
            engine.backward(loss)
            result = engine.step()
    assert result.stepped
    grads = [param.grad.to_dense() for param in exact.parameters()]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    assert result.grad_norm == pytest.approx(float(norm), rel=5e-3)
    for grad, moved, start in zip(grads, model.parameters(), net().parameters(), strict=True):
        limit = clipping.get("clip_value", float("inf"))
        clipped = (grad * min(1.0, clipping.get("clip_norm", 1e9) / norm)).clamp(-limit, limit)
        torch.testing.assert_close((start - moved).detach(), clipped, rtol=5e-3, atol=1e-4)


def test_a_sparse_overflow_skips() -> None:
    model = nn.Embedding(7, 6, sparse=True)
    start = model.weight.detach().clone()
    with Engine(model, sgd(model), recipe="fp16") as engine:
        engine.backward(engine.model(torch.tensor([1, 1])).sum() * float("inf"))
        assert engine.step().skipped
        assert torch.equal(model.weight, start)
        assert engine.loss_scale == 2.0**15


@pytest.mark.parametrize("recipe", ["half", "o2", "bf16-kahan"])
def test_sparse_gradients_are_refused_under_half_parameters(recipe: str) -> None:
    model = nn.Sequential(nn.Embedding(7, 6, sparse=True))
    with pytest.raises(ValueError, match=r"module '0' makes sparse gradients.*recipe='fp16'"):
        Engine(model, sgd(model), recipe=recipe)
    assert model[0].weight.dtype == torch.float32


def test_sparse_gradients_are_refused_under_adaptive_clipping() -> None:
    model = nn.Embedding(7, 6, sparse=True)
    with Engine(model, sgd(model), clip_adaptive=0.1) as engine:
        engine.backward(engine.model(torch.tensor([1])).sum())
        with pytest.raises(TypeError, match="write clip_norm instead"):
            engine.step()


def test_a_recipe_of_ones_own_is_carried_out() -> None:
    model = mlp()
    recipe = Recipe(params="bf16", norms="fp32", master_weights=True)
    with Engine(model, sgd(model), recipe=recipe) as engine:
        assert model[0].weight.dtype == torch.bfloat16
        assert engine.optimizer.param_groups[0]["params"][0].dtype == torch.float32
        assert engine.recipe is recipe


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda model: (sgd(model), model),
            r"model is of type SGD.*write Engine\(model, opt",
        ),
        (
            lambda model: (model.forward, sgd(model)),
            "model is of type method; allowed: a torch",
        ),
        (lambda model: (model, 0.1), "optimizer is of type float; allowed: a torch Optimizer"),
        (lambda model: (model, model), "optimizer is of type Linear"),
        (lambda model: ([model, None], [sgd(model)]), "model is of type NoneType"),
    ],
)
def test_what_is_no_model_or_no_optimizer_is_refused(given, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Engine(*given(mlp()))


class Rotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(6, dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(inputs.float() * self.turn)


@pytest.mark.parametrize("recipe", ["fp16", "o2"])
def test_complex_parameters_are_refused_where_losses_are_scaled(recipe: str) -> None:
    model = Rotation()
    with pytest.raises(TypeError, match=r"'turn' is complex.*recipe='bf16' or 'fp32'"):
        Engine(model, sgd(model), recipe=recipe)
    for works in ("fp32", "bf16"):
        with Engine(model, sgd(model), recipe=works) as engine:
            engine.backward(loss_of(engine))
            assert engine.step().stepped


@pytest.mark.parametrize("settings", [{"recipe": "o2"}, {"recipe": "fp16", "average": EMA(0.5)}])
def test_lazy_parameters_are_refused_where_they_would_be_copied(settings) -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"'0.weight' has no shape.*run model\(batch\) once"):
        Engine(model, sgd(model), **settings)
    model(INPUTS)
    with Engine(model, sgd(model), **settings) as engine:
        engine.backward(loss_of(engine))
        assert engine.step().stepped


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("recipe", ["half", "o2", "bf16-sr"])
def test_a_module_of_torchscript_is_refused_where_it_needs_hooks(recipe: str) -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(6, 3)))
    with pytest.raises(TypeError, match=r"'0' is compiled by TorchScript.*recipe='fp16'"):
        Engine(model, sgd(model), recipe=recipe)
    with Engine(model, sgd(model), recipe="fp16") as engine:
        engine.backward(loss_of(engine))
        assert engine.step().stepped


class Encoder(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)


@pytest.mark.parametrize("build", [lambda: nn.Linear(6, 3), lambda: nn.LSTM(6, 3)])
@pytest.mark.parametrize(("recipe", "half"), [("o2", "float16"), ("bf16-kahan", "bfloat16")])
def test_another_method_than_the_call_is_told_to_cast_its_inputs(recipe, half, build) -> None:
    model = Encoder(build())
    message = rf"write engine\.model\.method\(inputs\.to\(torch\.{half}\)\)"
    with Engine(model, sgd(model), recipe=recipe) as engine:
        with pytest.raises(TypeError, match=message), engine.autocast():
            engine.model.encode(INPUTS)
        with pytest.raises(TypeError, match=message), engine.evaluating():
            engine.model.encode(INPUTS.double())
        with engine.autocast():
            engine.model.encode(INPUTS.to(getattr(torch, half)))
        with pytest.raises(ValueError, match="of the loop"), engine.autocast():
            raise ValueError("of the loop")
