"""An engine's loss scale beside `torch.amp.GradScaler`: the same programs, the same bits.

The programs are those that PyTorch tests its scaler with. Each is written once, against the calls
of a `GradScaler`, and run with PyTorch's and with an engine that is given the same calls.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW, Optimizer

from halfstep.engine import Engine

from .tiny import differences, mlp, through_a_file

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 12
SETTINGS = {"init": 128.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}
RECIPE = {"name": "scaled", "loss_scale": SETTINGS}
GENERATOR = torch.Generator().manual_seed(5)
DATA = [
    (torch.randn(4, 6, generator=GENERATOR), torch.randn(4, 3, generator=GENERATOR))
    for _ in range(2 * STEPS)
]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9),
    "sgd-fused": partial(SGD, lr=0.1, momentum=0.9, fused=True),
    "adam": partial(Adam, lr=0.01),
    "adamw-fused": partial(AdamW, lr=0.01, fused=True),
}


class Torchs:
    """PyTorch's scaler, with clipping as its documentation has it."""

    def __init__(self, models: list[nn.Module], optimizers: list[Optimizer], **_: Any) -> None:
        del models
        self.optimizers = optimizers
        self._scaler = torch.amp.GradScaler(
            "cpu",
            init_scale=SETTINGS["init"],
            growth_factor=SETTINGS["growth_factor"],
            backoff_factor=SETTINGS["backoff_factor"],
            growth_interval=int(SETTINGS["growth_interval"]),
        )

    def backward(self, loss: torch.Tensor, accumulate: int = 1, **how: Any) -> None:
        self._scaler.scale(loss / accumulate).backward(**how)

    def grad(self, output: torch.Tensor, inputs: list[nn.Parameter]) -> list[torch.Tensor]:
        scaled = torch.autograd.grad(self._scaler.scale(output), inputs, create_graph=True)
        return [each / self._scaler.get_scale() for each in scaled]

    def step_and_update(self, clip_norm: float | None = None) -> None:
        for optimizer in self.optimizers:
            if clip_norm is not None:
                self._scaler.unscale_(optimizer)
                params = [param for group in optimizer.param_groups for param in group["params"]]
                nn.utils.clip_grad_norm_(params, clip_norm)
            self._scaler.step(optimizer)
        self._scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def scale(self) -> float:
        return self._scaler.get_scale()

    def state(self) -> Any:
        return [self._scaler.state_dict(), [each.state_dict() for each in self.optimizers]]

    def load(self, state: Any) -> None:
        self._scaler.load_state_dict(state[0])
        for optimizer, saved in zip(self.optimizers, state[1], strict=True):
            optimizer.load_state_dict(saved)

    def close(self) -> None:
        pass


class OurEngine:
    """The same calls, of an engine."""

    def __init__(
        self, models: list[nn.Module], optimizers: list[Optimizer], **settings: Any
    ) -> None:
        self._engine = Engine(models, optimizers, recipe=RECIPE, **settings)

    def backward(self, loss: torch.Tensor, accumulate: int = 1, **how: Any) -> None:
        assert accumulate == self._engine.accumulate
        self._engine.backward(loss, **how)

    def grad(self, output: torch.Tensor, inputs: list[nn.Parameter]) -> list[torch.Tensor]:
        return list(self._engine.grad(output, inputs, create_graph=True))

    def step_and_update(self, clip_norm: float | None = None) -> None:
        del clip_norm  # the engine was told when it was made
        self._engine.step()

    def scale(self) -> float:
        return self._engine.loss_scale

    def state(self) -> Any:
        return self._engine.state_dict()

    def load(self, state: Any) -> None:
        self._engine.load_state_dict(state)

    def close(self) -> None:
        self._engine.close()


@dataclass
class Seen:
    """What a program leaves: weights after each step, and the scale."""

    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    def look(self, models: list[nn.Module], scaler: Torchs | OurEngine) -> None:
        self.weights += [copy.deepcopy(model.state_dict()) for model in models]
        self.scales.append(scaler.scale())


def with_bad_gradients(param: nn.Parameter, bad: set[int], value: float) -> Callable[[], None]:
    """Replace an element of a gradient at some backwards; return what counts one of them."""
    at = [0]

    def strike(grad: torch.Tensor) -> torch.Tensor:
        if at[0] not in bad:
            return grad
        struck = grad.clone()
        struck.view(-1)[-1] = value
        return struck

    def count() -> None:
        at[0] += 1

    param.register_hook(strike)
    return count


def one_model(scaler_type: type, build, bad: set[int], value: float, **settings: Any) -> Seen:
    model = mlp()
    count = with_bad_gradients(model[0].weight, bad, value)
    clip, accumulate = settings.get("clip_norm"), settings.get("accumulate", 1)
    scaler = scaler_type([model], [build(model.parameters())], **settings)
    seen = Seen()
    for place in range(STEPS * accumulate):
        inputs, targets = DATA[place]
        scaler.backward(mse_loss(model(inputs), targets), accumulate)
        count()
        if scaler_type is OurEngine or (place + 1) % accumulate == 0:
            scaler.step_and_update(clip)
        if (place + 1) % accumulate == 0:
            seen.look([model], scaler)
    scaler.close()
    return seen


def assert_alike(program: Callable[[type], Seen]) -> Seen:
    expected, found = program(Torchs), program(OurEngine)
    assert found.scales == expected.scales
    assert not differences(found.weights, expected.weights)
    return expected


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_with_a_bad_gradient_is_skipped_and_the_scale_backs_off(build, value) -> None:
    seen = assert_alike(partial(one_model, build=build, bad={2, 3, 8}, value=value))
    assert not differences(seen.weights[1], seen.weights[3])
    assert differences(seen.weights[3], seen.weights[4])


@pytest.mark.parametrize("bad", [set(), {0}, {3, 7}, set(range(6))], ids=str)
def test_the_scale_grows_after_an_interval_without_a_bad_gradient(bad: set[int]) -> None:
    seen = assert_alike(partial(one_model, build=OPTIMIZERS["sgd"], bad=bad, value=float("inf")))
    if not bad:
        assert seen.scales == [128.0] * 2 + [256.0] * 3 + [512.0] * 3 + [1024.0] * 3 + [2048.0]


def test_one_bad_gradient_skips_the_whole_window() -> None:
    seen = assert_alike(
        partial(one_model, build=OPTIMIZERS["sgd"], bad={2, 9}, value=float("inf"), accumulate=2)
    )
    assert not differences(seen.weights[0], seen.weights[1])


@pytest.mark.parametrize("clip_norm", [0.05, 100.0])
def test_clipping_sees_unscaled_gradients(clip_norm: float) -> None:
    program = partial(
        one_model, build=OPTIMIZERS["sgd"], bad={4}, value=float("inf"), clip_norm=clip_norm
    )
    expected, found = program(Torchs), program(OurEngine)
    assert found.scales == expected.scales
    # A clipped norm is a root of sums, which the two take in another order.
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("struck", [0, 1])
def test_of_two_optimizers_only_the_one_with_a_bad_gradient_skips(struck: int) -> None:
    """Two losses reach both models; one optimizer's gradients are bad, and the scale moves once."""

    def program(scaler_type: type) -> Seen:
        models = [mlp(0), mlp(1)]
        count = with_bad_gradients(models[struck][0].weight, {6, 7}, float("inf"))
        optimizers = [
            build(model.parameters())
            for build, model in zip((OPTIMIZERS["sgd"], OPTIMIZERS["adam"]), models, strict=True)
        ]
        scaler = scaler_type(models, optimizers)
        seen = Seen()
        for inputs, targets in DATA[:STEPS]:
            first, second = (model(inputs) for model in models)
            scaler.backward(mse_loss(0.3 * first + 0.7 * second, targets), retain_graph=True)
            count()
            scaler.backward(mse_loss(0.6 * first - 0.4 * second, targets))
            count()
            scaler.step_and_update()
            seen.look(models, scaler)
        scaler.close()
        return seen

    seen = assert_alike(program)
    before, after = seen.weights[4:6], seen.weights[6:8]
    assert not differences(before[struck], after[struck])
    assert differences(before[1 - struck], after[1 - struck])
    assert seen.scales[2:4] == [256.0, 128.0]


def test_a_gradient_penalty_is_of_unscaled_gradients() -> None:
    def program(scaler_type: type) -> Seen:
        model = mlp()
        scaler = scaler_type([model], [OPTIMIZERS["sgd"](model.parameters())])
        seen = Seen()
        for inputs, targets in DATA[:STEPS]:
            loss = mse_loss(model(inputs), targets)
            grads = scaler.grad(loss, list(model.parameters()))
            norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
            scaler.backward(loss + 0.1 * norm)
            scaler.step_and_update()
            seen.look([model], scaler)
        scaler.close()
        return seen

    assert_alike(program)


def of_an_embedding(scaler_type: type, *, tokens: list[int], factor: float) -> Seen:
    """Sparse gradients, one of them multiplied by `factor`."""
    torch.manual_seed(0)
    model = nn.Embedding(5, 3, sparse=True)
    scaler = scaler_type([model], [SGD(model.parameters(), lr=0.1)])
    seen = Seen()
    for step in range(4):
        loss = model(torch.tensor(tokens)).sum() * (factor if step == 1 else 1.0)
        scaler.backward(loss)
        scaler.step_and_update()
        seen.look([model], scaler)
    scaler.close()
    return seen


@pytest.mark.parametrize(("factor", "skipped"), [(2.0, False), (3e38, True)])
def test_sparse_gradients_are_unscaled_and_checked(factor: float, skipped: bool) -> None:
    seen = assert_alike(partial(of_an_embedding, tokens=[1, 3], factor=factor))
    assert bool(differences(seen.weights[0], seen.weights[1])) != skipped


def test_sparse_gradients_are_checked_after_those_of_one_row_are_added_up() -> None:
    """As PyTorch's scaler does with fp16; here each entry is finite in fp32, and the sum is not."""
    seen = of_an_embedding(OurEngine, tokens=[3, 3], factor=3e38 / 128)
    assert seen.scales[:2] == [128.0, 64.0]
    assert not differences(seen.weights[0], seen.weights[1])


@pytest.mark.parametrize("stop", [1, 5, 6])
def test_a_saved_scale_goes_on_with_its_count(stop: int) -> None:
    def program(scaler_type: type) -> Seen:
        seen = Seen()
        saved: Any = None
        for first, last in ((0, stop), (stop, STEPS)):
            model = mlp()
            scaler = scaler_type([model], [OPTIMIZERS["adam"](model.parameters())])
            if saved is not None:
                model.load_state_dict(saved[0])
                scaler.load(saved[1])
            count = with_bad_gradients(model[0].weight, {5 - first}, float("nan"))
            for inputs, targets in DATA[first:last]:
                scaler.backward(mse_loss(model(inputs), targets))
                count()
                scaler.step_and_update()
                seen.look([model], scaler)
            saved = through_a_file([model.state_dict(), scaler.state()])
            scaler.close()
        return seen

    whole = one_model(Torchs, OPTIMIZERS["adam"], {5}, float("nan"))
    assert assert_alike(program).scales == whole.scales


def test_a_second_step_without_a_backward_is_refused() -> None:
    """As a second `scaler.step` since `update` is."""
    model = mlp()
    scaler = OurEngine([model], [OPTIMIZERS["sgd"](model.parameters())])
    scaler.backward(mse_loss(model(DATA[0][0]), DATA[0][1]))
    scaler.step_and_update()
    with pytest.raises(RuntimeError, match="backward"):
        scaler.step_and_update()
    scaler.close()
