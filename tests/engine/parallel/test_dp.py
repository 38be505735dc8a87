"""`parallel="dp"`: replicas in threads carry out the recipe as one model in one thread does.

Where there are no two GPUs, two replicas on a CPU stand for them: torch's own `replicate` makes
them, and threads call them as torch's `parallel_apply` does.
"""

from __future__ import annotations

import importlib
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel
from torch.optim import SGD
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engine.tiny import DigitsNet, differences, digits_net, mlp, relative_error
from halfstep.engine import EMA, Engine
from halfstep.engine.closing.statistics import RunningStatistics
from halfstep.engine.parallel import dp
from halfstep.engine.parallel.dp import ThreadedReplicas
from halfstep.engine.recompute import recompute
from halfstep.recipe import RECIPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPLICATE = importlib.import_module("torch.nn.parallel.replicate")


class TwoOnOneCpu(ThreadedReplicas):
    """Takes the CPU for two GPUs."""

    def __init__(self, module: nn.Module, device_ids: Sequence[int]) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.dim = module, [0, 1], 0
        self.src_device_obj, self.output_device = torch.device("cpu"), 0
        self.asked_for = device_ids

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        del device_ids
        parts = [(part,) for part in inputs[0].chunk(2)]
        return parts, [kwargs] * len(parts)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        del output_device
        return torch.cat(outputs)


def broadcast(tensors: Sequence[torch.Tensor], devices: Any, detach: bool = False) -> Any:
    """What the first device gets shares its memory with the model, as on GPUs."""
    first = [t.detach() if detach else t.view_as(t) for t in tensors]
    return [first, *([t.clone() for t in first] for _ in devices[1:])]


def apply_in_threads(modules: Any, inputs: Any, kwargs: Any, devices: Any) -> list[Any]:
    """Call each as torch does: gradients as in the caller, autocast on or off in its default."""
    del devices
    results: dict[int, Any] = {}
    grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    def work(number: int) -> None:
        torch.set_grad_enabled(grad)
        with torch.autocast("cpu", enabled=autocast):
            results[number] = modules[number](*inputs[number], **kwargs[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(modules))]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp, "ThreadedReplicas", TwoOnOneCpu)
    monkeypatch.setattr(dp, "parallel_apply", apply_in_threads)
    monkeypatch.setattr(REPLICATE, "_broadcast_coalesced_reshape", broadcast)
    monkeypatch.setattr(REPLICATE, "_get_device_index", lambda device, _: device)
    monkeypatch.setattr(dp, "_refuse_off_gpus", lambda models, options: None)


def engine_over(model: nn.Module, **settings: Any) -> Engine:
    return Engine(model, SGD(model.parameters(), lr=0.1, momentum=0.9), **settings)


def net() -> nn.Sequential:
    """Return a net whose widths fp8 takes, without statistics, which replicas keep differently."""
    torch.manual_seed(0)
    features = [nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(256, 32), nn.LayerNorm(32), nn.Linear(32, 16))


def movable(model: nn.Module) -> torch.Tensor:
    """Return all weights as one vector."""
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def trained(
    engine: Engine, batches: Any, call: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Train on some batches; return the outputs."""
    outputs = []
    for images, labels in batches:
        with engine.autocast():
            outputs.append(call(images))
            loss = cross_entropy(outputs[-1].float(), labels)
        engine.backward(loss)
        engine.step()
    return outputs


def by_parts(engine: Engine) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what calls the model of `engine` on one half of a batch after the other."""
    return lambda images: torch.cat([engine.model(part) for part in images.chunk(2)])


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", RECIPES)
def test_replicas_do_what_one_model_does_with_the_parts_one_by_one(name, digits) -> None:
    batches = digits.batches(16, 3)
    found, wanted = net(), net()
    start = movable(found)
    with (
        engine_over(found, recipe=name, parallel="dp") as parallel,
        engine_over(wanted, recipe=name) as alone,
    ):
        ours = trained(parallel, batches, parallel.model)
        theirs = trained(alone, batches, by_parts(alone))
        assert not differences(ours[0].detach(), theirs[0].detach())
        assert parallel.bare_model is found
        assert parallel.loss_scale == alone.loss_scale
        # Only the gradients of the parts are added in other formats; nvfp4 rounds them at random.
        moved, expected = movable(found) - start, movable(wanted) - start
        assert relative_error(moved, expected) < (0.3 if name == "nvfp4" else 0.01)
        with parallel.evaluating(), alone.evaluating():
            ours, theirs = parallel.model(digits.images[:8]), by_parts(alone)(digits.images[:8])
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, theirs) < (0.3 if name == "nvfp4" else 0.02)


@pytest.mark.usefixtures("two_gpus")
def test_blocks_of_replicas_compute_their_own_activations_again(digits) -> None:
    batches = digits.batches(16, 3)
    nets = [nn.Sequential(*net()[:3], nn.Sequential(*net()[3:])) for _ in range(2)]
    recompute(nets[0], [nets[0][3]])
    with (
        engine_over(nets[0], recipe="o2", parallel="dp") as again,
        engine_over(nets[1], recipe="o2", parallel="dp") as once,
    ):
        outputs = [trained(engine, batches, engine.model) for engine in (again, once)]
    assert not differences(*outputs)
    assert not differences(nets[0].state_dict(), nets[1].state_dict())


class Formats(nn.Module):
    """Notes the format that its layer computes in, and in which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.seen: list[tuple[torch.dtype, bool]] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result = self.layer(values)
        here = threading.current_thread() is threading.main_thread()
        self.seen.append((result.dtype, here))
        return result


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("format_", [torch.float16, torch.bfloat16, None])
def test_replicas_compute_in_the_autocast_of_their_caller(format_) -> None:
    model = Formats()
    with engine_over(model, parallel="dp") as engine:
        with torch.autocast("cpu", dtype=format_ or torch.bfloat16, enabled=format_ is not None):
            engine.model(torch.ones(4, 6))
        assert model.seen == [(format_ or torch.float32, False)] * 2


@pytest.mark.usefixtures("two_gpus")
def test_replicas_make_the_exceptions_of_the_recipe() -> None:
    model = Formats()
    recipe = {"base": "fp16", "exceptions": {"op:linear": "fp32"}}
    with engine_over(model, recipe=recipe, parallel="dp") as engine:
        with engine.autocast():
            engine.model(torch.ones(4, 6))
        assert model.seen == [(torch.float32, False)] * 2


class Calls(TorchFunctionMode):
    """Notes the thread of each call of `linear`."""

    def __init__(self, threads: list[int]) -> None:
        super().__init__()
        self.threads = threads

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        if func is nn.functional.linear:
            self.threads.append(threading.get_ident())
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Notes the thread of each matrix product."""

    def __init__(self, threads: list[int]) -> None:
        super().__init__()
        self.threads = threads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func is torch.ops.aten.addmm.default:
            self.threads.append(threading.get_ident())
        return func(*args, **(kwargs or {}))


ASKED: ContextVar[str] = ContextVar("ASKED", default="nothing")


class Asks(nn.Module):
    """Notes a context variable, and whether inference mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.seen: list[tuple[str, bool]] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen.append((ASKED.get(), torch.is_inference_mode_enabled()))
        return self.layer(values)


@pytest.mark.usefixtures("two_gpus")
def test_replicas_run_in_the_modes_of_their_caller() -> None:
    called, dispatched, packed = [], [], []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(threading.get_ident())
        return tensor

    model = Asks()
    token = ASKED.set("something")
    try:
        with (
            engine_over(model, parallel="dp") as engine,
            Calls(called),
            Dispatched(dispatched),
            saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            engine.model(torch.ones(4, 6))
            here = threading.get_ident()
            for threads in (called, dispatched, packed):
                assert sum(thread != here for thread in threads) == 2, "once in each replica"
            with torch.inference_mode():
                engine.model(torch.ones(4, 6))
    finally:
        ASKED.reset(token)
    assert model.seen == [("something", False)] * 2 + [("something", True)] * 2


@pytest.mark.usefixtures("two_gpus")
def test_running_statistics_are_the_first_replicas_and_a_skipped_step_leaves_them(digits) -> None:
    (images, labels), *_ = digits.batches(16, 1)
    model, reference = digits_net(), digits_net()
    with engine_over(model, recipe="fp32", parallel="dp") as engine:
        trained(engine, [(images, labels)], engine.model)
        reference(images[:8])
        buffers = dict(reference.named_buffers())
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer, buffers[name])
    model = digits_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with engine_over(model, recipe="fp16", parallel="dp") as engine:
        trained(engine, [(images * torch.inf, labels)], engine.model)
        assert engine.skipped == 1
        assert not differences(dict(model.state_dict()), before)


def test_statistics_are_copied_before_a_wrapper_starts_its_threads() -> None:
    model = mlp(norm=True)

    class Starting(nn.Module):
        def forward(self, _: torch.Tensor) -> bool:
            return statistics.state_dict() is not None

    wrapper = Starting()
    statistics = RunningStatistics(model, wrapper)
    assert wrapper(torch.ones(2, 6))
    statistics.close()
    statistics.forget()
    assert not wrapper(torch.ones(2, 6))


@pytest.mark.usefixtures("two_gpus")
def test_averages_names_and_gpus_are_as_asked_for(digits) -> None:
    model = digits_net()
    options = {"device_ids": [0, 1]}
    with engine_over(model, recipe="o2", parallel="dp", dp=options, average=EMA(0.5)) as engine:
        trained(engine, digits.batches(16, 2), engine.model)
        assert engine.model.asked_for == [0, 1]
        assert engine.bare_model.state_dict().keys() == DigitsNet().state_dict().keys()
        assert engine.averaged_state_dict().keys() == DigitsNet().state_dict().keys()
        assert engine.model.training
    assert engine.model is model


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"recipe": {"base": "fp16", "reduce": "bf16"}},
            "write parallel='ddp', or leave that field",
        ),
        ({"sync_batchnorm": True}, "sync_batchnorm is given without parallel='ddp'"),
        ({"ddp": {"static_graph": True}}, "ddp is given without parallel='ddp'"),
        ({"parallel": None, "dp": {"device_ids": [0]}}, "dp is given without parallel='dp'"),
    ],
)
def test_settings_that_it_could_not_follow_are_refused(settings, said) -> None:
    with pytest.raises(ValueError, match=said):
        engine_over(mlp(), **{"parallel": "dp", **settings})


def test_models_that_it_could_not_replicate_are_refused() -> None:
    compiled = mlp()
    compiled.compile(backend="eager")
    with pytest.raises(ValueError, match=r"leave out compile\(\), or write parallel='ddp'"):
        engine_over(compiled, parallel="dp")
    with pytest.raises(ValueError, match="parallel='dp' wraps bare models, but one is in DataPar"):
        engine_over(DataParallel(mlp()), parallel="dp")


def test_a_cpu_is_refused(monkeypatch) -> None:
    model = mlp()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"needs GPUs, and torch sees none.*parallel='ddp'"):
        engine_over(model, parallel="dp")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match=r"a model is on cpu; write model\.cuda\(\) before"):
        engine_over(model, parallel="dp")


def test_torchs_own_threads_are_refused_where_they_would_compute_in_fp16() -> None:
    wrapped = DataParallel(mlp())
    wrapped.device_ids = [0, 1]
    with pytest.raises(ValueError, match=r"it computes in bf16.*would in fp16.*parallel='dp'"):
        engine_over(wrapped, recipe="bf16")
    with engine_over(wrapped, recipe="fp16"):
        pass


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", RECIPES)
def test_two_gpus_train_as_one(name, digits) -> None:
    batches = [(images.cuda(), labels.cuda()) for images, labels in digits.batches(64, 4)]
    losses = []
    for settings in ({}, {"parallel": "dp", "dp": {"device_ids": [0, 1]}}):
        model = net().cuda()
        with engine_over(model, recipe=name, **settings) as engine:
            outputs = trained(engine, batches, engine.model)
        last = cross_entropy(outputs[-1].float(), batches[-1][1])
        losses.append(float(last))
        assert outputs[-1].device == torch.device("cuda:0")
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
