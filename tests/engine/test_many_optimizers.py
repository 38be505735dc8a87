"""Many losses and optimizers under one loss scale, against a float64 reference written by hand.

Tolerance: each gradient comes out of four products in fp16, whose unit roundoff is 2**-11 = 4.9e-4;
the reference has none of them. Ten roundoffs (5e-3) cover their sum, also after momentum has added
up three windows. A window that is scaled wrongly is off by a factor of 2 or more.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.engine import Engine

from .tiny import mlp, relative_error, with_infinite_gradient

TOLERANCE = 10 * 2.0**-11
WINDOWS = 3
OVERFLOWING = 1
LR, MOMENTUM = 0.1, 0.9
SCALE = {"init": 2.0**12, "growth_interval": 2}
CLIPPING: dict[str, dict[str, float]] = {
    "none": {},
    "norm": {"clip_norm": 0.4},
    "value": {"clip_value": 0.03},
}


def data(accumulate: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator))
        for _ in range(WINDOWS * accumulate)
    ]


def losses(branches: list[torch.Tensor], targets: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Losses that reach every branch."""
    total = torch.stack([branch.to(targets.dtype) for branch in branches]).sum(0)
    both = [(total - targets).square().mean(), 0.3 * (total + 1).square().mean()]
    return both[:count]


@dataclass
class Reference:
    """SGD with momentum on one net in float64, without autocast or any scale."""

    net: nn.Module
    clipping: dict[str, float]

    def __post_init__(self) -> None:
        self.net = self.net.double()
        self.params = list(self.net.parameters())
        self.start = [param.detach().clone() for param in self.params]
        self.momentum = [torch.zeros_like(param) for param in self.params]
        self.norm = 0.0

    def step(self, *, skip: bool) -> None:
        grads = [param.grad for param in self.params]
        self.norm = float(sum(grad.square().sum() for grad in grads) ** 0.5)
        for param, grad, momentum in zip(self.params, grads, self.momentum, strict=True):
            param.grad = None
            if skip:
                continue
            norm_limit = self.clipping.get("clip_norm", float("inf"))
            limit = self.clipping.get("clip_value", float("inf"))
            clipped = (grad * min(1.0, norm_limit / self.norm)).clamp(-limit, limit)
            momentum.mul_(MOMENTUM).add_(clipped)
            param.data -= LR * momentum


class ScaleByHand:
    """What the loss scale must be: one update for each engine step that closes a window."""

    def __init__(self) -> None:
        self.value, self.finite = SCALE["init"], 0

    def update(self, *, overflow: bool) -> None:
        self.finite = 0 if overflow else self.finite + 1
        if overflow:
            self.value /= 2
        elif self.finite == SCALE["growth_interval"]:
            self.value, self.finite = self.value * 2, 0


def assert_moved_alike(nets: list[nn.Module], references: list[Reference], engine: Engine) -> None:
    for net, reference, optimizer in zip(nets, references, engine.optimizers, strict=True):
        states = [optimizer.state[param]["momentum_buffer"] for param in net.parameters()]
        moved = [p.detach() - s for p, s in zip(net.parameters(), reference.start, strict=True)]
        wanted = [p.detach() - s for p, s in zip(reference.params, reference.start, strict=True)]
        for value, exact in ((moved, wanted), (states, reference.momentum)):
            flat = torch.cat([each.flatten() for each in value])
            assert relative_error(flat, torch.cat([e.flatten() for e in exact])) < TOLERANCE


def cases() -> list[Any]:
    found = []
    for accumulate, clipping, count, losses_ in itertools.product(
        (1, 4), CLIPPING, (1, 2, 3), (1, 2)
    ):
        for overflow in (None, *range(count)):
            name = f"accumulate{accumulate}-{clipping}-{count}optimizers-{losses_}losses"
            found.append(
                pytest.param(
                    accumulate, clipping, count, losses_, overflow, id=f"{name}-{overflow}"
                )
            )
    return found


@pytest.mark.parametrize(("accumulate", "clipping", "count", "n_losses", "overflow"), cases())
def test_every_combination_equals_float64(
    accumulate: int, clipping: str, count: int, n_losses: int, overflow: int | None
) -> None:
    nets: list[nn.Module] = [mlp(seed) for seed in range(count)]
    references = [Reference(mlp(seed), CLIPPING[clipping]) for seed in range(count)]
    scale = ScaleByHand()
    optimizers = [SGD(net.parameters(), lr=LR, momentum=MOMENTUM) for net in nets]
    recipe = {"base": "fp16", "loss_scale": SCALE}
    with Engine(
        nets, optimizers, recipe=recipe, accumulate=accumulate, **CLIPPING[clipping]
    ) as engine:
        for place, (inputs, targets) in enumerate(data(accumulate)):
            window = place // accumulate
            # In the middle of a window, so that good gradients come before and after.
            strike = window == OVERFLOWING and place % accumulate == accumulate // 2
            with engine.autocast():
                branches = [net(inputs) for net in engine.models]
                if strike and overflow is not None:
                    branches[overflow] = with_infinite_gradient(branches[overflow])
                found = losses(branches, targets, n_losses)
            for loss in found:
                engine.backward(loss, retain_graph=loss is not found[-1])
            result = engine.step()

            exact = [reference.net(inputs.double()) for reference in references]
            (sum(losses(exact, targets.double(), n_losses)) / accumulate).backward()
            if place % accumulate < accumulate - 1:
                assert not result.closed
                continue
            assert result.loss_scale == scale.value
            for index, reference in enumerate(references):
                skip = index == overflow and window == OVERFLOWING
                reference.step(skip=skip)
                assert result[index].stepped is not skip
                assert result[index].skipped is skip
                assert result[index].found_inf is skip
                if not skip:
                    assert result[index].grad_norm == pytest.approx(reference.norm, rel=TOLERANCE)
            scale.update(overflow=overflow is not None and window == OVERFLOWING)
            assert engine.loss_scale == scale.value
        assert engine.skipped == (overflow is not None)
        assert_moved_alike(nets, references, engine)


@dataclass
class Turns:
    """Two nets whose optimizers take turns, each beside its reference in float64."""

    engine: Engine
    references: list[Reference]

    def backward(
        self, turn: int, batch: tuple[torch.Tensor, torch.Tensor], *, strike: bool
    ) -> None:
        """Run a loss that reaches both nets, for one optimizer only."""
        inputs, targets = batch
        with self.engine.autocast():
            branches = [net(inputs) for net in self.engine.models]
            if strike:
                branches = [with_infinite_gradient(branch) for branch in branches]
            loss = losses(branches, targets, 2)[turn]
        self.engine.backward(loss, optimizers=[self.engine.optimizers[turn]])
        exact = [reference.net(inputs.double()) for reference in self.references]
        loss = losses(exact, targets.double(), 2)[turn] / self.engine.accumulate
        loss.backward(inputs=self.references[turn].params)

    def step(self, turn: int, *, skip: bool) -> bool:
        used = self.engine.loss_scale
        result = self.engine.step(optimizers=[self.engine.optimizers[turn]])
        if result.closed:
            self.references[turn].step(skip=skip)
            assert result[turn].skipped is skip
            assert result[turn].stepped is not skip
            assert result[turn].loss_scale == used
            assert not result[1 - turn].closed
        return result.closed


@pytest.mark.parametrize("overflow", [None, 0, 1])
@pytest.mark.parametrize("both_backwards_first", [False, True])
@pytest.mark.parametrize("clipping", CLIPPING.values(), ids=CLIPPING)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_two_optimizers_taking_turns_equal_float64(
    accumulate: int,
    clipping: dict[str, float],
    both_backwards_first: bool,
    overflow: int | None,
) -> None:
    nets: list[nn.Module] = [mlp(seed) for seed in (0, 1)]
    references = [Reference(mlp(seed), clipping) for seed in (0, 1)]
    optimizers = [SGD(net.parameters(), lr=LR, momentum=MOMENTUM) for net in nets]
    recipe = {"base": "fp16", "loss_scale": SCALE}
    scale = ScaleByHand()
    with Engine(nets, optimizers, recipe=recipe, accumulate=accumulate, **clipping) as engine:
        turns = Turns(engine, references)
        for place, batch in enumerate(data(accumulate)):
            struck = overflow if place // accumulate == OVERFLOWING else None
            strike = struck if place % accumulate == 0 else None
            order = [("backward", 0), ("step", 0), ("backward", 1), ("step", 1)]
            if both_backwards_first:
                order.sort(key=lambda each: each[0])
            for what, turn in order:
                if what == "backward":
                    turns.backward(turn, batch, strike=turn == strike)
                elif turns.step(turn, skip=turn == struck):
                    scale.update(overflow=turn == struck)
                    assert engine.loss_scale == scale.value
        assert engine.skipped == (overflow is not None)
        assert_moved_alike(nets, references, engine)


def updates_of(init: float, growth: float, *, overflow: bool) -> list[torch.Tensor]:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=1.0) for net in nets]
    scale = {"init": init, "growth_factor": growth, "growth_interval": 1}
    with Engine(nets, optimizers, recipe={"base": "fp16", "loss_scale": scale}) as engine:
        inputs, targets = data(1)[0]
        with engine.autocast():
            branches = [net(inputs) for net in nets]
            if overflow:
                branches[0] = with_infinite_gradient(branches[0])
            loss = losses(branches, targets, 1)[0]
        engine.backward(loss)
        engine.step()
    return [
        torch.cat([(a - b).detach().flatten() for a, b in zip(*pair, strict=True)])
        for pair in ((mlp(i).parameters(), net.parameters()) for i, net in enumerate(nets))
    ]


def updates_of_one_update_for_each_optimizer(
    init: float, growth: float, *, overflow: bool
) -> list[torch.Tensor]:
    """What Fabric 2.6.6 and accelerate 1.15.0 do: `scaler.update()` after each optimizer."""
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=1.0) for net in nets]
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=init, growth_factor=growth, growth_interval=1, backoff_factor=0.5
    )
    inputs, targets = data(1)[0]
    with torch.autocast("cpu", dtype=torch.float16):
        branches = [net(inputs) for net in nets]
        if overflow:
            branches[0] = with_infinite_gradient(branches[0])
        loss = losses(branches, targets, 1)[0]
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
        scaler.update()
    return [
        torch.cat([(a - b).detach().flatten() for a, b in zip(*pair, strict=True)])
        for pair in ((mlp(i).parameters(), net.parameters()) for i, net in enumerate(nets))
    ]


@pytest.mark.parametrize(
    ("growth", "overflow", "wrong_by"), [(1024.0, False, 1 / 1024), (2.0, True, 2.0)]
)
def test_the_second_optimizer_moves_as_if_it_were_alone(
    growth: float, overflow: bool, wrong_by: float
) -> None:
    branches = [mlp(0).double(), mlp(1).double()]
    inputs, targets = (tensor.double() for tensor in data(1)[0])
    losses([net(inputs) for net in branches], targets, 1)[0].backward()
    true = torch.cat([param.grad.flatten() for param in branches[1].parameters()])

    first, second = updates_of(2.0**10, growth, overflow=overflow)
    assert relative_error(second, true) < TOLERANCE
    assert bool((first == 0).all()) is overflow
    _, theirs = updates_of_one_update_for_each_optimizer(2.0**10, growth, overflow=overflow)
    assert relative_error(theirs / wrong_by, true) < TOLERANCE


def test_gradients_meant_for_one_optimizer_reach_no_other() -> None:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=1.0) for net in nets]
    with Engine(nets, optimizers, recipe="fp16") as engine:
        with engine.autocast():
            loss = (nets[0](torch.ones(2, 6)) * nets[1](torch.ones(2, 6))).mean()
        engine.backward(loss, optimizers=[optimizers[0]])
        assert all(param.grad is None for param in nets[1].parameters())
        with pytest.raises(RuntimeError, match=r"without an engine\.backward"):
            engine.step(optimizers=[optimizers[1]])
        result = engine.step()
        assert [each.closed for each in result.optimizers] == [True, False]


def test_an_optimizer_that_the_engine_does_not_own_is_refused() -> None:
    model = mlp()
    with (
        Engine(model, SGD(model.parameters(), lr=1.0)) as engine,
        pytest.raises(ValueError, match="an optimizer that this engine does not own"),
    ):
        engine.backward(model(torch.ones(2, 6)).mean(), optimizers=[SGD(model.parameters())])


@pytest.mark.parametrize("given", [lambda opt: opt, lambda opt: [opt], lambda opt: (opt,)])
def test_optimizers_are_one_or_a_list(given) -> None:
    nets = [mlp(0), mlp(1)]
    optimizers = [SGD(net.parameters(), lr=1.0) for net in nets]
    mine = given(optimizers[1])
    with Engine(nets, optimizers) as engine:
        loss = (nets[0](torch.ones(2, 6)) * nets[1](torch.ones(2, 6))).mean()
        engine.backward(loss, optimizers=mine, retain_graph=True)
        engine.zero_grad(optimizers=mine)
        assert all(param.grad is None for net in nets for param in net.parameters())
        engine.backward(loss, optimizers=mine)
        assert all(param.grad is None for param in nets[0].parameters())
        result = engine.step(optimizers=mine)
        assert [each.stepped for each in result.optimizers] == [False, True]


def test_what_is_no_optimizer_is_refused_in_a_line() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0)) as engine:
        loss = model(torch.ones(2, 6)).mean()
        said = r"^optimizers is of type (int|Linear); allowed: a torch Optimizer or a list of them"
        for wrong in (0, model[0], [model[0]]):
            with pytest.raises(TypeError, match=said):
                engine.backward(loss, optimizers=wrong)
        twice = [engine.optimizer] * 2
        with pytest.raises(ValueError, match=r"or one twice; allowed: the entries of engine\.opt"):
            engine.backward(loss, optimizers=twice)
