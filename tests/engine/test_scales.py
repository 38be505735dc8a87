"""Loss scales of their own beside the shared one, and updates that wait for open windows."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.engine import Engine
from halfstep.recipe import Recipe

from .tiny import mlp, relative_error, with_infinite_gradient

INPUTS = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
FP16 = {"base": "fp16", "loss_scale": {"init": 1024, "growth_interval": 2}}
O2 = {"base": "o2", "loss_scale": {"init": 1024, "growth_interval": 2}}
HALF = Recipe(params="fp16", norms="fp32", loss_scale={"init": 1024, "growth_interval": 2})


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("ids", [("a", "b"), (None, "a"), ("a", None), ("a", "a")])
@pytest.mark.parametrize("recipe", [FP16, O2, HALF], ids=["fp16", "o2", "half"])
def test_losses_with_scales_of_their_own_add_up(recipe, ids, accumulate: int) -> None:
    model, exact = mlp(), mlp().double()
    start = flat(list(exact.parameters()))
    with Engine(
        model, SGD(model.parameters(), lr=1.0), recipe=recipe, accumulate=accumulate, clip_norm=0.7
    ) as engine:
        for micro in range(accumulate):
            inputs = INPUTS + micro
            with engine.autocast():
                output = engine.model(inputs).float()
            engine.backward(output.square().mean(), loss_id=ids[0], retain_graph=True)
            engine.backward(3e-3 * output.exp().mean(), loss_id=ids[1])
            result = engine.step()
            output = exact(inputs.double())
            ((output.square().mean() + 3e-3 * output.exp().mean()) / accumulate).backward()
        true = flat([param.grad for param in exact.parameters()])
        assert result.stepped
        assert result.grad_norm == pytest.approx(float(true.norm()), rel=1e-2)
        moved = start - flat(list(engine.model.state_dict().values()))
    expected = true * min(1.0, 0.7 / float(true.norm()))
    # fp16 without masters rounds the weights themselves, by 2**-11 of their size.
    assert relative_error(moved, expected) < (2e-2 if recipe is HALF else 5e-3)


def test_a_loss_with_its_own_scale_weighs_fully_in_an_uneven_window() -> None:
    model, exact = mlp(), mlp().double()
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=FP16, accumulate=4) as engine:
        for place, loss_id in engine.batches(enumerate((None, "a", "a"))):
            with engine.autocast():
                output = engine.model(INPUTS + place)
            engine.backward(output.float().square().mean(), loss_id=loss_id)
            engine.step()
            (exact(INPUTS.double() + place).square().mean() / 3).backward()
    moved = flat(list(mlp().parameters())) - flat(list(model.parameters()))
    assert relative_error(moved, flat([param.grad for param in exact.parameters()])) < 5e-3


@pytest.mark.parametrize("strike", ["shared", "a", "b"])
def test_an_overflow_backs_off_only_the_scale_of_its_loss(strike: str) -> None:
    model = mlp()
    start = flat(list(model.parameters()))
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=FP16, accumulate=2) as engine:
        for micro in range(2):
            for name in ("shared", "a", "b"):
                with engine.autocast():
                    output = engine.model(INPUTS)
                    if micro == 0 and name == strike:
                        output = with_infinite_gradient(output)
                loss_id = None if name == "shared" else name
                engine.backward(output.float().square().mean(), loss_id=loss_id)
            result = engine.step()
        assert result.skipped
        assert torch.equal(flat(list(model.parameters())), start)
        names = {None: "shared", "a": "a", "b": "b"}
        for loss_id, scaler in engine.loss_scales.items():
            assert float(scaler.scale) == (512 if names[loss_id] == strike else 1024)
        engine.flush()
        histories = {names[i]: [c.why for c in s.history] for i, s in engine.loss_scales.items()}
        assert histories[strike] == ["start", "overflow"]
        assert all(why == ["start"] for name, why in histories.items() if name != strike)


def test_a_loss_id_that_reaches_two_optimizers_updates_its_scale_once() -> None:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=0.1) for net in nets]
    with Engine(nets, optimizers, recipe=FP16) as engine:
        for _ in range(2):
            with engine.autocast():
                output = nets[0](INPUTS) + nets[1](INPUTS)
            engine.backward(output.float().square().mean(), loss_id="both")
            assert engine.step().stepped
        assert float(engine.loss_scales["both"].scale) == 2048
        assert engine.loss_scale == 1024


def moved_beside_an_overflow(*, overflow: bool) -> torch.Tensor:
    """Return the update of a net whose gradients wait while another changes the scale."""
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=0.1) for net in nets]
    with Engine(nets, optimizers, recipe=FP16) as engine:
        for net, optimizer in zip(nets, optimizers, strict=True):
            with engine.autocast():
                output = net(INPUTS)
                if overflow and net is nets[0]:
                    output = with_infinite_gradient(output)
            engine.backward(output.float().square().mean(), optimizers=[optimizer])
        assert engine.step(optimizers=[optimizers[0]]).skipped is overflow
        assert engine.loss_scale == (512 if overflow else 1024)
        result = engine.step(optimizers=[optimizers[1]])
        assert result.stepped
        assert result.loss_scale == (512 if overflow else 1024)
    pairs = zip(mlp(1).parameters(), nets[1].parameters(), strict=True)
    return torch.cat([(before - after).detach().flatten() for before, after in pairs])


def test_gradients_that_wait_are_carried_over_to_a_new_scale() -> None:
    undisturbed = moved_beside_an_overflow(overflow=False)
    assert undisturbed.any()
    assert torch.equal(moved_beside_an_overflow(overflow=True), undisturbed)


def test_the_scale_backs_off_though_some_window_is_always_open() -> None:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=0.1) for net in nets]
    with Engine(nets, optimizers, recipe=FP16, accumulate=2) as engine:
        for turn in (1, 0, 1, 1, 0, 0, 1, 1, 0):  # each closes while the other's window is open
            with engine.autocast():
                output = nets[turn](INPUTS)
                if turn == 0:
                    output = with_infinite_gradient(output)
            engine.backward(output.float().square().mean(), optimizers=[optimizers[turn]])
            engine.step(optimizers=[optimizers[turn]])
        assert engine.skipped == 2
        assert engine.loss_scale == 256


def test_without_a_loss_scale_a_loss_id_changes_nothing() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe="bf16") as engine:
        with engine.autocast():
            loss = engine.model(INPUTS).float().mean()
        engine.backward(loss, loss_id="a")
        result = engine.step()
    assert result.stepped
    assert result.loss_scale == 1.0
    assert not engine.loss_scales


def test_sparse_gradients_are_refused_for_a_loss_with_its_own_scale() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with (
        Engine(model, SGD(model.parameters(), lr=1.0), recipe="fp16") as engine,
        pytest.raises(TypeError, match="leave loss_id out"),
    ):
        engine.backward(engine.model(torch.tensor([1])).sum(), loss_id="a")
