"""No step reads the device: on tensors without values, any read of one raises.

That is what keeps a host from waiting for a GPU, so it is shown here without one. The only read is
settlement's, of a copy that was started a step before; it is counted, and answered with zeros.
"""

import pytest
import timm
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR

from halfstep import EMA, Engine, recipe, recipes
from halfstep.engine.closing.host_copy import HostCopy
from halfstep.engine.closing.outcome import FURTHEST_AHEAD

STEPS = 2
TRACEABLE = [name for name in recipes() if not recipe(name).untraceable]
ROUNDED = {"bf16-sr": "apply", "bf16-kahan": "apply"}
"""Recipes under which a fused optimizer cannot skip on the device; others take the default."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        return self.head(self.norm(self.conv(images)).relu().mean((2, 3)))


@pytest.fixture
def reads(monkeypatch):
    """Count settlement's reads; each is of numbers of the step before."""
    counted = []

    def read(copy):
        counted.append(copy)
        return [0.0] * len(copy._values)

    monkeypatch.setattr(HostCopy, "read", read)
    return counted


def optimizer_of(kind, params, *, fused):
    made = kind(params, lr=0.1, **({"momentum": 0.9} if kind is SGD else {}))
    for group in made.param_groups:  # as on a GPU: a CPU's own tensors have no part in it
        group["fused" if fused else "foreach"] = True
    made._step_supports_amp_scaling = fused
    return made


def train(engine, micro_steps):
    images, labels = torch.randn(4, 3, 5, 5), torch.zeros(4, dtype=torch.int64)
    for _ in range(STEPS * micro_steps):
        with engine.autocast():
            loss = cross_entropy(engine.models[0](images).float(), labels)
        engine.backward(loss)
        engine.step()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACEABLE)
def test_no_step_of_a_fused_optimizer_reads_a_value(name, reads):
    ways = (
        (SGD, None, 1, None),
        (AdamW, 1.0, 1, None),
        (SGD, 1.0, 2, EMA(0.9)),
        (AdamW, None, 2, EMA(0.9)),
    )
    with FakeTensorMode():
        for kind, clip, micro_steps, average in ways:
            model = Net()
            engine = Engine(
                model,
                optimizer_of(kind, model.parameters(), fused=True),
                recipe=name,
                clip_norm=clip,
                accumulate=micro_steps,
                average=average,
                nonfinite=ROUNDED.get(name, "skip"),
            )
            reads.clear()
            train(engine, micro_steps)
            assert len(reads) < STEPS  # none of the last step: it is settled in the next
            engine.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("schedules", "read_by_then"), [(False, 2), (True, 17)])
def test_only_a_scheduler_waits_for_the_numbers_of_the_step_before(
    schedules, read_by_then, reads, monkeypatch
):
    monkeypatch.setattr(HostCopy, "has_arrived", False)
    with FakeTensorMode():
        model = Net()
        optimizer = optimizer_of(SGD, model.parameters(), fused=True)
        scheduler = StepLR(optimizer, 100) if schedules else None
        engine = Engine(model, optimizer, recipe="fp16", scheduler=scheduler)
        for _ in range(FURTHEST_AHEAD // STEPS + 1):
            train(engine, 1)
        assert engine.steps == FURTHEST_AHEAD + 2
        assert len(reads) == read_by_then
        engine.flush()
        assert len(reads) == engine.steps
        engine.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACEABLE)
def test_no_step_of_a_gan_reads_a_value(name, reads):
    with FakeTensorMode():
        models = [Net(), Net()]
        optimizers = [optimizer_of(AdamW, model.parameters(), fused=True) for model in models]
        policy = ROUNDED.get(name, "skip")
        engine = Engine(models, optimizers, recipe=name, clip_norm=1.0, nonfinite=policy)
        images = torch.randn(4, 3, 5, 5)
        for _ in range(STEPS):
            for model, optimizer in zip(engine.models, optimizers, strict=True):
                with engine.autocast():
                    loss = model(images).float().square().mean()
                engine.backward(loss, optimizers=[optimizer])
                engine.step(optimizers=[optimizer])
        assert len(reads) < 2 * STEPS
        engine.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACEABLE)
@pytest.mark.parametrize("policy", ["skip", "apply"])
def test_without_a_fused_kernel_only_the_check_makes_the_host_wait(name, policy, reads):
    waits = recipe(name).scaling is not None or policy == "skip"
    with FakeTensorMode():
        model = Net()
        optimizer = optimizer_of(SGD, model.parameters(), fused=False)
        engine = Engine(model, optimizer, recipe=name, nonfinite=policy)
        if waits:
            with pytest.raises(DataDependentOutputException):
                train(engine, 1)
        else:
            train(engine, 1)
        engine.close()


@pytest.mark.filterwarnings("ignore")
def test_a_result_is_read_from_the_device_when_it_is_asked_and_not_before(reads):
    with FakeTensorMode():
        model = Net()
        engine = Engine(model, optimizer_of(SGD, model.parameters(), fused=True))
        with engine.autocast():
            loss = model(torch.randn(4, 3, 5, 5)).square().mean()
        engine.backward(loss)
        result = engine.step()
        with pytest.raises(DataDependentOutputException):
            _ = result.grad_norm
        engine.close()


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_a_billion_parameters_takes_a_step_without_memory(reads):
    with torch.device("meta"):
        model = timm.create_model("vit_giant_patch14_224")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        size = sum(param.numel() for param in model.parameters())
        assert 4 * 4 * size > 16e9  # weights, gradients and two moments in fp32, in bytes
        engine = Engine(model, optimizer_of(AdamW, model.parameters(), fused=True), recipe="fp16")
        with engine.autocast():
            loss = engine.model(torch.randn(64, 3, 224, 224)).float().square().mean()
        engine.backward(loss)
        assert engine.step().closed
        engine.close()
