"""What an engine leaves when something goes wrong, or when it is closed."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD, AdamW

from halfstep import Engine, recipes
from halfstep.engine import EMA, LossScaleCollapse
from halfstep.mechanisms.cpu_half import CpuHalf
from halfstep.mechanisms.gradients.technique import GradientFormat

from .tiny import digits_net, mlp, with_infinite_gradient

FP16 = {"base": "fp16", "loss_scale": {"init": 1024}}
INPUTS = torch.linspace(-1, 1, 12).reshape(2, 6)


def loss_of(engine: Engine) -> torch.Tensor:
    with engine.autocast():
        return engine.model(INPUTS).float().square().mean()


def true_norm() -> float:
    model = mlp()
    model(INPUTS).square().mean().backward()
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))


@pytest.mark.parametrize("recipe", recipes())
def test_a_closed_engine_leaves_an_fp32_model_that_another_can_train(recipe: str) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Engine(model, optimizer, recipe=recipe) as engine:
        engine.backward(loss_of(engine))
        engine.step()
        within = {name: value.clone() for name, value in model.state_dict().items()}
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, within[name])
    momenta = [optimizer.state[param]["momentum_buffer"] for param in model.parameters()]
    assert all(momentum.dtype == torch.float32 for momentum in momenta)
    with Engine(model, optimizer, recipe="fp32") as engine:
        before = [param.clone() for param in model.parameters()]
        engine.backward(loss_of(engine))
        assert all(param.grad.dtype == torch.float32 for param in model.parameters())
        assert engine.step().stepped
    assert all(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_closing_gives_everything_back_whatever_a_technique_raises(monkeypatch) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, recipe="o2", average=EMA(0.5))
    engine.backward(loss_of(engine))
    engine.step()

    closes = {technique: technique.close for technique in (CpuHalf, GradientFormat)}

    def fails(technique: CpuHalf | GradientFormat) -> None:
        closes[type(technique)](technique)
        raise RuntimeError(type(technique).__name__)

    for technique in closes:
        monkeypatch.setattr(technique, "close", fails)
    with pytest.raises(RuntimeError, match="CpuHalf"):  # the last in is the first out
        engine.close()
    monkeypatch.undo()
    assert engine.models == [model]
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    optimizer.step()  # nobody guards it any more
    Engine(model, optimizer, recipe="fp16").close()


def test_a_part_of_an_o2_model_loads_and_saves_fp32() -> None:
    model = mlp()
    layer = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe="o2") as engine:
        wanted = torch.full_like(layer.weight, 0.1, dtype=torch.float32)
        layer.load_state_dict({"weight": wanted, "bias": layer.bias.float()})
        engine.backward(loss_of(engine))
        engine.step()
        assert torch.equal(layer.state_dict()["weight"], wanted)
        assert torch.equal(model.state_dict()["0.weight"], wanted)


def test_a_step_that_raises_leaves_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.0)
    with Engine(model, optimizer, recipe=FP16) as engine:
        engine.backward(loss_of(engine))
        monkeypatch.setattr(optimizer, "step", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        monkeypatch.undo()
        engine.backward(loss_of(engine))
        assert engine.step().grad_norm == pytest.approx(true_norm(), rel=2e-3)


def test_an_overflow_of_a_step_that_raises_does_not_back_off_the_next(monkeypatch) -> None:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=0.1) for net in nets]
    with Engine(nets, optimizers, recipe=FP16) as engine:
        for overflow in (True, False):
            with engine.autocast():
                outputs = [net(INPUTS) for net in nets]
                if overflow:
                    outputs[0] = with_infinite_gradient(outputs[0])
                loss = sum(output.float().square().mean() for output in outputs)
            engine.backward(loss)
            with monkeypatch.context() as patch:
                if overflow:
                    patch.setattr(optimizers[1], "step", lambda: 1 // 0)
                    with pytest.raises(ZeroDivisionError):
                        engine.step()
                else:
                    assert engine.step().stepped
        assert engine.loss_scale == 1024
        assert engine.skipped == 0


def test_a_backward_that_raises_drops_its_window() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=FP16, accumulate=2) as engine:
        engine.backward(loss_of(engine), samples=2, loss_id="own")
        engine.step()
        broken = loss_of(engine)
        broken.register_hook(lambda _: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            engine.backward(broken, samples=2, loss_id="own")
        for _ in range(2):
            engine.backward(loss_of(engine), samples=2)
            result = engine.step()
        assert result.grad_norm == pytest.approx(true_norm(), rel=2e-3)


def test_going_on_after_a_collapse_counts_no_gradient_twice() -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": {"init": 1024, "collapse_after": 1}}
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=recipe) as engine:
        with engine.autocast():
            loss = with_infinite_gradient(engine.model(INPUTS)).float().square().mean()
        engine.backward(loss)
        engine.step()
        engine.backward(loss_of(engine))
        with pytest.raises(LossScaleCollapse):
            engine.step()
        engine.backward(loss_of(engine))
        assert engine.step().grad_norm == pytest.approx(true_norm(), rel=2e-3)


def test_closing_settles_the_last_step() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with Engine(model, optimizer, scheduler=scheduler) as engine:
        engine.backward(loss_of(engine))
        engine.step()
    assert scheduler.last_epoch == 1


@pytest.mark.parametrize("trouble", ["load", "recompute", "zero_grad"])
def test_a_skip_restores_no_statistics_from_before_its_step(digits, trouble: str) -> None:
    model = digits_net()
    images, labels = digits.batches(8, 1)[0]
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=FP16) as engine:
        if trouble == "recompute":
            with torch.no_grad():
                model(images)
        else:
            model(images)
        if trouble == "load":
            state = model.state_dict()
            state["batch_norm.running_mean"] = torch.full((6,), 7.0)
            model.load_state_dict(state)
        elif trouble == "zero_grad":
            engine.zero_grad()
        wanted = model.batch_norm.running_mean.clone()
        with engine.autocast():
            loss = torch.nn.functional.cross_entropy(engine.model(images), labels) * torch.inf
        engine.backward(loss)
        assert engine.step().skipped
        assert torch.equal(model.batch_norm.running_mean, wanted)


def test_weights_loaded_before_the_first_step_start_the_average() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.0), average=EMA(0.5)) as engine:
        loaded = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
        model.load_state_dict(loaded)
        engine.backward(loss_of(engine))
        engine.step()
        assert all((value == 1).all() for value in engine.averaged_state_dict().values())


def test_parameters_added_later_are_averaged() -> None:
    model = mlp()
    *first, last = model.parameters()
    with Engine(model, SGD(first, lr=0.1), average=EMA(0.5)) as engine:
        engine.backward(loss_of(engine))
        engine.step()
        engine.optimizer.add_param_group({"params": [last]})
        start = last.detach().clone()
        engine.backward(loss_of(engine))
        engine.step()
        name = next(name for name, param in model.named_parameters() if param is last)
        assert torch.allclose(engine.averaged_state_dict()[name], (start + last) / 2)


def test_one_overflow_of_a_loss_with_its_own_scale_backs_off_once() -> None:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=0.1) for net in nets]
    with Engine(nets, optimizers, recipe=FP16) as engine:
        with engine.autocast():
            outputs = [with_infinite_gradient(net(INPUTS)) for net in nets]
            loss = sum(output.float().square().mean() for output in outputs)
        engine.backward(loss, loss_id="own")
        for optimizer in optimizers:
            assert engine.step(optimizers=[optimizer]).skipped
        assert float(engine.loss_scales["own"].scale) == 512


def test_half_gradients_are_widened_before_they_are_clipped() -> None:
    """Multiplied by 1e-4 in fp16, gradients of 1e-4 and less would be rounded to nothing."""
    model = mlp()
    recipe = {"params": "fp16", "loss_scale": {"init": 2.0**20, "ceiling": 2.0**24}}
    seen = []
    optimizer = SGD(model.parameters(), lr=0.0)
    with Engine(model, optimizer, recipe=recipe) as engine:
        optimizer.register_step_pre_hook(
            lambda *_: seen.extend(p.grad.clone() for p in model.parameters())
        )
        with engine.autocast():
            loss = engine.model(INPUTS).float().square().mean() * 2.0**-12
        engine.backward(loss)
        result = engine.step()
    assert result.grad_norm == pytest.approx(true_norm() * 2.0**-12, rel=1e-2)
    assert all(grad.dtype == torch.float16 for grad in seen)


def test_a_loss_scale_takes_whole_numbers_written_as_floats() -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": {"growth_interval": 1e3}}
    with Engine(model, AdamW(model.parameters()), recipe=recipe) as engine:
        engine.backward(loss_of(engine))
        assert engine.step().stepped
    recipe["loss_scale"]["growth_interval"] = 2.5
    with pytest.raises(ValueError, match=r"growth_interval is 2.5; allowed: a whole number"):
        Engine(model, AdamW(model.parameters()), recipe=recipe)
