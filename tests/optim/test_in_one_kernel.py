"""bf16 parameters that a kernel updates: here by its reference, which runs on a CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.doctor import Watch, diagnose
from halfstep.engine import Engine
from halfstep.optim import in_one_kernel
from halfstep.optim.bf16 import AdamBf16, SGDBf16

BUILDS = {
    "sgd": partial(SGD, lr=0.05),
    "nesterov": partial(SGD, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam-l2": partial(Adam, lr=0.01, weight_decay=0.1),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
    "adamw-fused": partial(AdamW, lr=0.01, fused=True),
}


@pytest.fixture
def _on_a_cpu(monkeypatch):
    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu", "cuda"})


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 33), nn.ReLU(), nn.Linear(33, 5))


def trained(recipe: str, build, steps: int = 20, engine: Engine | None = None, first: int = 0):
    if engine is None:
        model = net()
        engine = Engine(model, build(model.parameters()), recipe=recipe)
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(16, 12, generator=generator)
        engine.backward(
            engine.model(inputs.to(next(engine.model.parameters()).dtype)).float().square().mean()
        )
        engine.step()
    return engine


def exact_weights(engine: Engine) -> torch.Tensor:
    kept = engine.state_dict()["techniques"]["RoundedUpdate"]["compensations"]
    params = list(engine.model.parameters())
    lost = [0 if each is None else each.float() for each in kept]
    return torch.cat([(p.float() + e).flatten() for p, e in zip(params, lost, strict=True)])


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("recipe", ["bf16-kahan", "bf16-sr"])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_steps_are_those_of_torchs_optimizer_in_fp32(monkeypatch, recipe, build):
    """The stand-ins, which torch's own optimizer updates, are no nearer to fp32."""
    found = exact_weights(trained(recipe, build))
    monkeypatch.setattr(in_one_kernel, "DEVICES", set())
    stood_in, exact = (exact_weights(trained(name, build)) for name in (recipe, "bf16-kahan"))
    if recipe == "bf16-kahan":
        start = torch.cat([param.bfloat16().flatten() for param in net().parameters()])
        assert (found - exact).norm() < 0.01 * (exact - start).norm()
    else:
        assert (found - exact).norm() < 1.3 * (stood_in - exact).norm()


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("build", [BUILDS["adamw"], BUILDS["adamw-fused"], BUILDS["nesterov"]])
def test_the_optimizer_owns_the_state_that_torch_gives_it(monkeypatch, build):
    """Names, formats, shapes and numbers of steps are those of torch's own step."""

    def state(engine: Engine) -> list[dict[str, tuple]]:
        return [
            {name: (value.dtype, value.shape) for name, value in each.items()}
            | {"steps": float(each.get("step", 0))}
            for each in engine.optimizers[0].state.values()
        ]

    found = state(trained("bf16-sr", build, 3))
    monkeypatch.setattr(in_one_kernel, "DEVICES", set())
    assert found == state(trained("bf16-sr", build, 3))


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("build", [BUILDS["adamw-fused"], BUILDS["nesterov"]])
def test_each_step_that_is_taken_draws_new_numbers(build):
    engine = trained("bf16-sr", build, 3)
    engine.backward(engine.model(torch.full((2, 12), torch.inf).bfloat16()).float().sum())
    before = [param.clone() for param in engine.model.parameters()]
    assert engine.step().skipped
    assert all(map(torch.equal, engine.model.parameters(), before))
    assert engine.state_dict()["techniques"]["RoundedUpdate"]["draws"] == {"cpu": 3}
    trained("bf16-sr", build, 1, engine, first=3)
    assert engine.state_dict()["techniques"]["RoundedUpdate"]["draws"] == {"cpu": 4}


@pytest.mark.usefixtures("_on_a_cpu")
def test_a_momentum_that_is_skipped_on_the_device_is_in_fp32_too():
    engine = trained("bf16-sr", partial(SGD, lr=0.01, momentum=0.9, fused=True), 2)
    for state in engine.optimizers[0].state.values():
        assert state["momentum_buffer"].dtype == torch.float32
        assert state["momentum_buffer"].any()


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("recipe", ["bf16-kahan", "bf16-sr"])
@pytest.mark.parametrize("build", [BUILDS["adamw"], BUILDS["nesterov"]])
def test_a_resumed_run_takes_the_same_steps(recipe, build):
    straight = trained(recipe, build, 6)
    engine = trained(recipe, build, 3)
    model, state = engine.model.state_dict(), engine.state_dict()
    moments = engine.optimizers[0].state_dict()
    other = net()
    resumed = Engine(other, build(other.parameters()), recipe=recipe)
    resumed.model.load_state_dict(model)
    resumed.optimizers[0].load_state_dict(moments)
    resumed.load_state_dict(state)
    trained(recipe, build, 3, resumed, first=3)
    for one, two in zip(straight.model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


class Updates(TorchDispatchMode):
    """Counts the steps of the kernel, and all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("build", [BUILDS["adamw-fused"], BUILDS["nesterov"]])
def test_one_call_updates_all_parameters(monkeypatch, build):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))
    engine = Engine(model, build(model.parameters()), recipe="bf16-sr", nonfinite="apply")

    def names() -> list[str]:
        engine.backward(engine.model(torch.ones(2, 8, dtype=torch.bfloat16)).float().sum())
        monkeypatch.setattr("halfstep.kernels.update.reference.update", lambda *_: None)
        with Updates() as counted:
            engine.step()
        return counted.names

    names()
    found = names()
    assert found.count("halfstep::update") == 1
    assert len(found) < 30, "the number of operators does not depend on that of the parameters"


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("build", [partial(AdamBf16, lr=0.01), partial(SGDBf16, lr=0.02)])
def test_moments_in_bf16_stay_in_bf16(build):
    engine = trained("bf16-sr", build, 5)
    for state in engine.optimizers[0].state.values():
        moments = [value for name, value in state.items() if name != "step"]
        assert moments
        assert all(value.dtype == torch.bfloat16 and value.any() for value in moments)


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("recipe", ["bf16-kahan", "bf16-sr"])
def test_updates_that_round_to_nothing_are_counted_but_not_those_of_a_skipped_step(recipe):
    build = partial(AdamW, lr=1e-4, fused=True, weight_decay=0.0)
    engine = trained(recipe, build, 0)
    assert engine.lost_updates is None, "before the first step, nothing is known to be counted"
    trained(recipe, build, 3, engine)
    earlier, before = engine.lost_updates, exact_weights(engine)
    engine.optimizer.param_groups[0]["lr"] = 3e-8
    trained(recipe, build, 1, engine, first=3)
    unchanged = int((exact_weights(engine) == before).sum())
    assert 0 < engine.lost_updates - earlier <= unchanged
    engine.backward(engine.model(torch.full((2, 12), torch.inf).bfloat16()).float().sum())
    counted = engine.lost_updates
    assert engine.step().skipped
    assert engine.lost_updates == counted


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("build", [BUILDS["adamw-fused"], BUILDS["nesterov"]])
def test_under_doctor_the_kernel_takes_the_same_steps_and_nothing_is_found(build):
    alone = trained("bf16-sr", build, 6)
    observer = Watch()
    with observer:
        watched = trained("bf16-sr", build, 6)
    assert diagnose(observer.close()).verdicts == ()
    assert all(map(torch.equal, watched.model.parameters(), alone.model.parameters()))
    assert watched.lost_updates == alone.lost_updates > 0


def test_a_recipe_without_such_rounding_counts_nothing():
    assert trained("bf16-true", BUILDS["adamw-fused"], 1).lost_updates is None


def test_a_cpu_keeps_its_own_step():
    assert {"cuda"} == in_one_kernel.DEVICES
