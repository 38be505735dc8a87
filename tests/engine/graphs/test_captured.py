"""Captured steps give the bits of eager ones. `Tape` records in place of a CUDA graph."""

import copy
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS, SGD, Adagrad, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

from engine.tape import TapeRecorder
from halfstep import EMA, Engine, recipe
from halfstep.engine.graphs import recorders
from halfstep.engine.graphs.captured import WARM_UP
from halfstep.engine.graphs.recorders import CaptureError
from halfstep.engine.graphs.settings import LearningRates
from halfstep.engine.misuse import EngineWarning
from halfstep.optim.eight_bit import Adam8

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
ROOT = Path(__file__).parents[3]
GROWS = {"init": 256.0, "growth_interval": 4}


@pytest.fixture
def recorder(monkeypatch):
    made = TapeRecorder()
    monkeypatch.setattr(recorders, "new_recorder", lambda *_: lambda: made)
    return made


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 64, 8), nn.Dropout(0.2), nn.Linear(8, 4),
    )  # fmt: skip


class Run:
    """An engine over its own model, with steps that are captured or not."""

    def __init__(self, name="fp16", kind=SGD, *, captured, scheduler=None, lr=0.05, **settings):
        self.model = net()
        more = {"momentum": 0.9} if kind is SGD else {}
        self.optimizer = kind(self.model.parameters(), lr=lr, fused=True, **more)
        chosen = {"base": name, "loss_scale": GROWS} if recipe(name).scaling else name
        self.engine = Engine(
            self.model, self.optimizer, recipe=chosen, average=EMA(0.9),
            scheduler=scheduler(self.optimizer) if scheduler else None, **settings,
        )  # fmt: skip
        self.step = self.engine.capture(self.loss) if captured else self.eagerly

    def loss(self, images, labels):
        logits = self.engine.model(images)
        return cross_entropy(logits.float(), labels), logits

    def eagerly(self, images, labels, samples=None):
        with self.engine.autocast():
            loss, logits = self.loss(images, labels)
        self.engine.backward(loss, samples=samples)
        self.returned = loss.detach(), logits.detach()
        return self.engine.step()

    def tensors(self):
        state = {**self.engine.averaged_state_dict(), "scale": torch.tensor(self.engine.loss_scale)}
        state |= {f"current {name}": value for name, value in self.model.state_dict().items()}
        for index, entry in enumerate(self.optimizer.state.values()):
            state |= {f"{index} {key}": each for key, each in entry.items() if each is not None}
        return copy.deepcopy(state)


def batch(number, *, size=4, overflows=False):
    source = torch.Generator().manual_seed(number)
    images = torch.randn(size, 2, 8, 8, generator=source)
    if overflows:
        images[0, 0, 0, 0] = torch.inf
    return images, torch.randint(4, (size,), generator=source)


def assert_same(one, other, where=""):
    expected, found = one.tensors(), other.tensors()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value.nan_to_num(7), found[name].nan_to_num(7)), (where, name)


def numbers_of(result):
    return result.closed, result.stepped, result.skipped, result.grad_norm, result.loss_scale


def train(runs, batches, *, samples=False):
    """Take the same steps in both runs, each with the same random numbers of dropout."""
    for number, given in enumerate(batches):
        results = []
        for run in runs:
            torch.manual_seed(number)
            counted = {"samples": len(given[1])} if samples else {}
            kept = run.step(*given, **counted)
            returned = run.returned if run.step == run.eagerly else run.step.returned
            results.append((numbers_of(kept), [each.clone() for each in returned]))
        (expected, losses), (found, others) = results
        assert expected == pytest.approx(found, nan_ok=True), number
        assert all(map(torch.equal, losses, others)) or not losses[0].isfinite(), number
        assert_same(*runs, number)


def both(*args, **kwargs):
    return [Run(*args, captured=captured, **kwargs) for captured in (False, True)]


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "o2", "act4", "nvfp4"])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_steps_are_those_of_the_engine(name, kind, recorder):
    runs = both(name, kind, clip_norm=1.0)
    train(runs, [batch(number, overflows=number in {1, 7, 8, 15}) for number in range(20)])
    assert len(recorder.tapes) == 1
    assert runs[0].engine.steps == runs[1].engine.steps == 20
    assert runs[0].engine.skipped == runs[1].engine.skipped == 4
    for run in runs:
        run.engine.flush()
    histories = [[each.history for each in run.engine.loss_scales.values()] for run in runs]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("samples", [False, True])
def test_a_window_has_a_recording_for_each_kind_of_micro_step(samples, recorder):
    runs = both(accumulate=4)
    train(runs, [batch(n, overflows=n in {5, 21}) for n in range(40)], samples=samples)
    assert len(recorder.tapes) == 3


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_batch_of_another_size_runs_eagerly(accumulate, recorder):
    runs = both(accumulate=accumulate, clip_norm=1.0)
    sizes = [4, 4, 4, 3, 4] * 9
    train(runs, [batch(number, size=size) for number, size in enumerate(sizes)], samples=True)
    assert len(recorder.tapes) == (1 if accumulate == 1 else 3)


@pytest.mark.parametrize("sizes", [[4, 3], [3, 4]])
@pytest.mark.parametrize("overflowing", [0, 1])
def test_a_window_may_be_half_replayed(sizes, overflowing, recorder):
    runs = both(accumulate=2)
    train(runs, [batch(number) for number in range(12)])
    for window in range(3):
        given = [
            batch(2 * window + micro, size=size, overflows=window == 1 and micro == overflowing)
            for micro, size in enumerate(sizes)
        ]
        train(runs, given)


@pytest.mark.filterwarnings("ignore:.*gradients")
def test_gradients_that_the_loop_drops_are_not_replayed(recorder):
    runs = both(accumulate=2)
    train(runs, [batch(number) for number in range(11)])
    for run in runs:
        run.model.zero_grad()
    train(runs, [batch(number) for number in range(11, 16)])


def test_the_last_batch_of_a_loader_closes_the_window(recorder):
    runs = both(accumulate=4)
    for _ in range(5):
        loaders = [run.engine.batches([batch(number) for number in range(6)]) for run in runs]
        for given, _ in zip(*loaders, strict=True):
            train(runs, [given])
    assert runs[0].engine.steps == runs[1].engine.steps == 10


@pytest.mark.parametrize("scheduler", [
    lambda optimizer: CosineAnnealingLR(optimizer, 20),
    lambda optimizer: StepLR(optimizer, 5),
])  # fmt: skip
def test_schedulers_move_over_real_steps_only(scheduler, recorder):
    runs = both(scheduler=scheduler)
    train(runs, [batch(number, overflows=number in {6, 9}) for number in range(16)])
    assert runs[0].optimizer.param_groups[0]["lr"] == runs[1].optimizer.param_groups[0]["lr"]
    assert len(recorder.tapes) == 1


def test_a_rate_set_by_hand_is_read_from_then_on(recorder):
    runs = both()
    for number in range(16):
        if number > 6:
            for run in runs:
                run.optimizer.param_groups[0]["lr"] = 0.05 / number
        train(runs, [batch(number)])
    assert len(recorder.tapes) == 2  # with the rate as a number, and as a tensor


def test_a_setting_that_changes_in_each_step_ends_the_recordings(recorder):
    runs = both(scheduler=lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=40))
    batches = [batch(number) for number in range(20)]
    with pytest.warns(EngineWarning, match="a setting of an optimizer has changed 9 times"):
        train(runs, batches)


def test_an_optimizer_without_the_setting_fused_reads_a_moving_rate():
    param = nn.Parameter(torch.ones(2))
    window = SimpleNamespace(optimizer=Adam8([param]), params=[param])
    assert LearningRates([window], moves=True).fixed == []
    plain = SimpleNamespace(optimizer=SGD([param], lr=0.1), params=[param])
    assert LearningRates([plain], moves=True).fixed == [0.1]


def test_frozen_layers_and_modes_are_followed(recorder):
    runs = both()
    for number in range(20):
        for run in runs:
            run.model[1].train(number < 8)
            run.model[0].weight.requires_grad_(number < 12)
        train(runs, [batch(number)])
    assert len(recorder.tapes) == 3


@pytest.mark.parametrize(("kind", "scheduler"), [
    (AdamW, None), (SGD, lambda optimizer: StepLR(optimizer, 2)),
])  # fmt: skip
def test_a_resume_in_the_middle_is_exact(kind, scheduler, recorder):
    runs = both(kind=kind, accumulate=2, scheduler=scheduler)
    train(runs, [batch(number) for number in range(13)])
    states = copy.deepcopy([(run.model.state_dict(), run.engine.state_dict()) for run in runs])
    train(runs, [batch(number) for number in range(13, 20)])
    for run, (model, engine) in zip(runs, states, strict=True):
        run.model.load_state_dict(model)
        run.engine.load_state_dict(engine)
    train(runs, [batch(number) for number in range(13, 25)])


def test_adam_is_told_that_its_step_is_recorded(recorder, monkeypatch):
    """Without, torch refuses; no optimizer is told outside of a recording, where torch warns."""
    real, told = AdamW._init_group, []

    def init_group(self, group, *args):
        told.append(group["capturable"])
        return real(self, group, *args)

    monkeypatch.setattr(AdamW, "_init_group", init_group)
    run = Run(kind=AdamW, captured=True)
    for number in range(6):
        run.step(*batch(number))
    assert told == [False] * WARM_UP + [True]


def test_each_result_keeps_its_numbers(recorder):
    run = Run(captured=True)
    results = [run.step(*batch(number, overflows=number == 6)) for number in range(10)]
    assert [each.skipped for each in results] == [number == 6 for number in range(10)]
    assert len({each.grad_norm for each in results if each.stepped}) == 9


def test_two_optimizers_are_captured_apart(recorder):
    def pair():
        torch.manual_seed(0)
        models = [nn.Linear(4, 4), nn.Linear(4, 4)]
        optimizers = [SGD(each.parameters(), lr=0.1, fused=True) for each in models]
        engine = Engine(models, optimizers, recipe={"base": "fp16", "loss_scale": GROWS})

        def loss_of(index):
            return lambda x: (engine.models[1](engine.models[0](x)).float() * (-1) ** index).mean()

        return engine, [(loss_of(index), optimizers[index]) for index in range(2)]

    (eager, eager_parts), (captured, parts) = pair(), pair()
    steps = [captured.capture(loss, optimizers=optimizer) for loss, optimizer in parts]
    for number in range(12):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
        for (loss, optimizer), step in zip(eager_parts, steps, strict=True):
            with eager.autocast():
                value = loss(x)
            eager.backward(value, optimizers=optimizer)
            eager.step(optimizers=optimizer)
            step(x)
    for one, other in zip(eager.models, captured.models, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
    assert all(step.replays for step in steps)


def test_an_operator_that_needs_the_host_is_named_and_nothing_has_changed(recorder):
    run = Run(captured=True)
    ordinary, run.loss = run.loss, None
    looks = False

    def loss(images, labels):
        if looks and float(images.sum()) > 1e9:
            raise AssertionError
        return ordinary(images, labels)

    run.step = run.engine.capture(loss)
    for number in range(WARM_UP):
        run.step(*batch(number))
    before, looks = run.tensors(), True
    with pytest.raises(CaptureError, match="_local_scalar_dense"):
        run.step(*batch(3))
    assert run.engine.steps == WARM_UP
    for name, value in run.tensors().items():
        assert torch.equal(value, before[name]), name
    with run.engine.autocast():
        value, _ = ordinary(*batch(3))
    run.engine.backward(value)
    assert run.engine.step().stepped


def test_on_a_cpu_steps_run_eagerly_and_this_is_said_once():
    model = net()
    engine = Engine(model, SGD(model.parameters(), lr=0.1, fused=True))
    with pytest.warns(EngineWarning, match="run eagerly"):
        step = engine.capture(lambda x, y: cross_entropy(engine.model(x), y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(5):
            assert step(*batch(number)).stepped
    assert not step.replays


FUSED = {"lr": 0.1, "fused": True}
REFUSED = {
    "nonfinite": (lambda params: SGD(params, **FUSED), {"nonfinite": "raise"}),
    "unfused": (lambda params: SGD(params, lr=0.1), {}),
    "counts": (lambda params: AdamW(params, lr=0.1), {"nonfinite": "apply"}),
    "dampening": (lambda params: SGD(params, momentum=0.9, dampening=0.1, **FUSED), {}),
    "unknown": (lambda params: Adagrad(params, **FUSED), {}),
    "closure": (LBFGS, {}),
    "rounding": (lambda params: SGD(params, **FUSED), {"recipe": "bf16-sr"}),
    "processes": (lambda params: SGD(params, **FUSED), {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_engine_that_cannot_be_replayed_is_refused_as_the_docs_say(case):
    make, settings = REFUSED[case]
    model = net()
    engine = Engine(model, make(model.parameters()), **settings)
    if case == "processes":
        engine._assembly.ranks.group = SimpleNamespace(size=lambda: 2)
    with pytest.raises(ValueError, match="steps cannot be captured: ") as refused:
        engine.capture(lambda x: engine.model(x).sum())
    reason = str(refused.value).removeprefix("steps cannot be captured: ")
    assert f"\n- {reason}\n" in (ROOT / "docs" / "graphs.md").read_text().replace("\n  ", " ")
