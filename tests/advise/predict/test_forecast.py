"""A step under recipes on tensors without memory, and what is predicted of it."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.choose import advice
from halfstep.advise.predict import step
from halfstep.advise.predict.forecast import Forecast, Forecaster, forecast, forecasts
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.interval import around
from halfstep.advise.predict.memory import largest_batch, needed, usable
from halfstep.advise.predict.step import traced, traced_at
from halfstep.advise.predict.trace import Trace
from halfstep.advise.subject import Subject
from halfstep.advise.table import fastest
from halfstep.cli import advise as commands
from halfstep.cli import main
from halfstep.engine import Engine
from halfstep.errors import UserError
from halfstep.recipe import recipe as find_recipe

ROOT = Path(__file__).parents[3]


def subject(model: nn.Module | None = None) -> Subject:
    torch.manual_seed(0)
    return Subject(
        "net",
        model
        or nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(8 * 16 * 16, 10),
        ),
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        [(torch.randn(4, 3, 16, 16), torch.zeros(4, dtype=torch.int64))],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    )


@pytest.fixture(scope="module")
def plain() -> Trace:
    return traced(subject(), "fp32")


def test_tracing_leaves_model_batches_and_random_numbers_as_they_are() -> None:
    given = subject()
    before = {name: value.clone() for name, value in given.model.state_dict().items()}
    state = torch.get_rng_state()
    precision = torch.get_float32_matmul_precision()
    for name in ("o2", "bf16-sr"):
        traced(given, name, 16)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == precision
    for name, value in given.model.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name]), name
    assert all(param.grad is None for param in given.model.parameters())
    assert len(given.batches[0][0]) == 4


def test_a_batch_size_traced_after_another_is_as_if_traced_alone() -> None:
    alone = traced(subject(), "o2", 8)
    after = traced_at(subject(), "o2", [4, 8])[1]
    assert Counter(after.calls) == Counter(alone.calls)
    assert replace(after, calls=()) == replace(alone, calls=())


def test_products_run_in_the_formats_of_the_recipe(plain: Trace) -> None:
    def formats(trace: Trace) -> set[str]:
        return {call.op.format for call in trace.calls if call.op.flops}

    assert formats(plain) == {"fp32"}
    assert formats(traced(subject(), "fp16")) == {"fp16"}
    assert formats(traced(subject(), "bf16-sr")) == {"bf16"}
    # Forward, and the gradients of weights and of inputs, save that of the images.
    conv, linear = 2 * 4 * 8 * 256 * 27, 2 * 4 * 2048 * 10
    assert plain.flops == 2 * conv + 3 * linear


def test_held_memory_is_weights_momentum_statistics_and_the_batch() -> None:
    trace = traced(subject(), "fp32", exact=True)
    weights = 8 * 27 + 16 + 2048 * 10 + 10
    batch = 4 * (4 * 3 * 256) + 8 * 4
    statistics = 4 * 16 + 8
    # The engine keeps a few numbers of its own.
    assert 0 <= trace.held - (4 * 2 * weights + statistics + batch) <= 64
    # Saved by autograd: outputs of convolution, norm, ReLU and dropout, the mask of dropout.
    assert trace.saved >= 4 * (4 * 8 * 256) * 3
    assert trace.peak > trace.held + trace.saved
    halved = traced(subject(), "half", exact=True)
    assert halved.held < trace.held
    assert halved.saved < trace.saved


def test_memory_of_a_real_step_is_what_its_trace_says() -> None:
    class Saved:
        seen: dict[int, int] = {}

        def pack(self, tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            self.seen[storage._cdata] = storage.nbytes()
            return tensor

    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    given = subject(net)
    given.batches[0] = torch.randn(16, 32), torch.zeros(16, dtype=torch.int64)  # type: ignore[index]
    trace = traced(given, "fp32", exact=True)
    counter = Saved()
    with torch.autograd.graph.saved_tensors_hooks(counter.pack, lambda tensor: tensor):
        given.loss(net, given.batches[0])
    owned = {param.untyped_storage()._cdata for param in net.parameters()}
    owned |= {tensor.untyped_storage()._cdata for tensor in given.batches[0]}
    saved = sum(size for key, size in counter.seen.items() if key not in owned)
    # The loss itself, and the sum of its weights, are kept besides.
    assert saved <= trace.saved <= saved + 64


class Half(nn.Module):
    """Statistics of half batches, and a buffer with a fraction that half has not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 1), nn.BatchNorm2d(64)
        self.register_buffer("third", torch.tensor(1 / 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images)) * self.third


@pytest.mark.parametrize("name", ["fp16", "o2", "bf16-sr"])
def test_memory_of_a_real_half_step_is_what_its_trace_says(name: str) -> None:
    batch = torch.randn(2, 3, 4, 4), torch.randn(2, 64, 4, 4)
    given = replace(
        subject(Half()),
        loss=lambda model, batch: functional.mse_loss(model(batch[0]).float(), batch[1]),
        batches=[batch],
    )
    seen: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    model = given.copied()
    with Engine(model, given.optimizer(model), recipe=name) as engine:
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, engine.autocast():
            loss = given.loss(engine.model, batch)
        own = [*model.parameters(), *model.buffers(), *batch]
        held = {tensor.untyped_storage()._cdata for tensor in own}
        seen[loss.untyped_storage()._cdata] = loss.untyped_storage()
        saved = sum(each.nbytes() for key, each in seen.items() if key not in held)
    # Beside that, an engine with a loss scale keeps the statistics of BatchNorm for a skipped step.
    kept = 2 * 64 * 4 + 8 + 4 if name != "bf16-sr" else 0
    assert saved <= traced(given, name, exact=True).saved <= saved + kept


def test_the_largest_batch_just_fits() -> None:
    small, large = (Trace((), batch, 0, 0, batch * 10_000_000) for batch in (8, 16))
    limit = usable(gpu("t4"))
    most = largest_batch(small, large, limit)
    assert needed(Trace((), most, 0, 0, most * 10_000_000)) <= limit
    assert needed(Trace((), most + 1, 0, 0, (most + 1) * 10_000_000)) > limit


def test_a_recipe_that_is_rehearsed_by_other_operators_is_refused() -> None:
    with pytest.raises(
        UserError,
        match="cost of fp8 cannot be predicted: a CPU and a GPU run different operators",
    ):
        traced(subject(), "fp8")


def test_a_forecast_says_no_gain_and_does_not_fit() -> None:
    def of_batch(batch: int) -> dict[tuple[str, str], str]:
        found = forecast(subject(), ["fp16", "bf16"], [gpu("h100"), gpu("t4")], batch=batch)
        return {(each.gpu.key, each.recipe): each.verdict for each in found}

    small = of_batch(4)
    assert list(small) == [
        ("h100_sxm", "tf32"), ("h100_sxm", "fp16"), ("h100_sxm", "bf16"),
        ("t4", "fp32"), ("t4", "fp16"), ("t4", "bf16"),
    ]  # fmt: skip
    assert small["h100_sxm", "fp16"] == "no gain"  # the host's launches are all that counts
    assert small["t4", "bf16"].startswith("no bf16 units")
    assert "units" not in small["h100_sxm", "bf16"] + small["t4", "fp16"]
    large = of_batch(1_000_000)
    assert large["t4", "fp32"].startswith("does not fit")
    assert not large["h100_sxm", "fp16"]


def test_the_command_labels_every_figure_as_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["advise", "digits", "--recipes", "bf16", "--cost-only", "--gpu"]
    assert main([*asked, "h100"]) == 0
    shown = capsys.readouterr().out
    assert "H100" in shown
    assert "predicted" in shown
    assert "nothing was run" in shown
    assert "which recipes are safe for the model was not examined" in shown
    assert main([*asked, "h100", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predicted"]["rows"]
    assert [row["recipe"] for row in rows] == ["tf32", "bf16"]
    figures = {name for name, value in rows[1].items() if isinstance(value, (dict, float))}
    assert all(name.startswith(("predicted_", "unknown")) for name in figures)
    assert main([*asked, "h101"]) == 2
    assert "allowed:" in capsys.readouterr().err


def test_the_cost_is_shown_before_recipes_are_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise UserError("tried after that")

    monkeypatch.setattr(advice, "advise", interrupted)
    assert main(["advise", "digits", "--recipes", "fp16,fp8", "--gpu", "t4"]) == 2
    shown = capsys.readouterr()
    assert "tried after that" in shown.err
    assert "advise now examines which recipes are safe for the model" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines() if "[" in line and "." in line][
        :2
    ] == ["fp32", "fp16"]
    assert "fp8" not in shown.out  # which a CPU cannot trace, and which is no error here


def test_an_eps_that_is_zero_makes_a_recipe_unsafe_before_it_is_examined() -> None:
    given = replace(subject(), optimizer=lambda model: torch.optim.AdamW(model.parameters()))
    found = forecast(given, ["half", "half-bn32", "o2", "fp16"], [gpu("t4")])
    assert [each.recipe for each in found if each.unsafe] == ["half", "half-bn32"]
    assert all("unsafe eps" in each.remarks for each in found if each.unsafe)
    rows = [
        replace(each, speed_up=each.speed_up and around(9.0, 0.1), seconds=around(1e-6, 0.1))
        if each.unsafe
        else each
        for each in found
    ]
    assert "half" not in " ".join(fastest(rows, "")[0])
    assert not any(each.unsafe for each in forecast(subject(), ["half"], [gpu("t4")]))


def test_a_loss_scale_of_another_size_costs_no_other_trace() -> None:
    asked: list[str] = []
    forecaster = Forecaster(subject(), largest=False, tell=asked.append)
    whole = forecaster.predict(find_recipe("fp16"), gpu("t4"))
    scaled = find_recipe({"base": "fp16", "loss_scale": 1024.0})
    assert forecaster.predict(scaled, gpu("t4")).seconds.value > 0
    dynamic = replace(find_recipe("fp16").scaling, init=8.0)
    found = forecaster.predict(find_recipe({"base": "fp16", "loss_scale": dynamic}), gpu("t4"))
    assert found.seconds == whole.seconds
    alone = Forecaster(subject(), largest=False)
    assert alone.predict(find_recipe({"base": "fp16", "loss_scale": dynamic}), gpu("t4")) == found
    assert asked[0] == "cost of fp16"
    assert len(asked) == 3  # fp16 once, fp32, and fp16 with a constant scale


def test_a_step_of_micro_steps_is_traced_as_if_all_of_them_were(
    plain: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = replace(subject(), accumulate=5, clip_norm=1.0)
    short = traced(given, "fp16")
    monkeypatch.setattr(step, "_TRACED", 5)
    assert Counter(traced(given, "fp16").calls) == Counter(short.calls)

    def count(trace: Trace, *names: str) -> int:
        return sum(call.count for call in trace.calls if call.op.name in names)

    assert short.flops == 5 * plain.flops
    assert count(short, "_fused_sgd_") == count(plain, "_fused_sgd_") == 1
    assert count(short, "_foreach_norm", "linalg_vector_norm") > 0
    assert not count(plain, "_foreach_norm", "linalg_vector_norm")


def test_a_forecast_counts_the_samples_of_all_micro_steps() -> None:
    one, four = (
        forecast(replace(subject(), accumulate=each), ["fp16"], [gpu("t4")])[1] for each in (1, 4)
    )
    assert four.seconds.value > 2 * one.seconds.value
    assert four.rate.value == pytest.approx(4 * four.batch / four.seconds.value)
    assert (one.samples, four.samples) == ("4", "4 x 4")


def test_the_busy_batch_is_where_the_gpu_stops_waiting_for_the_host() -> None:
    def reference(batch: int) -> Forecast:
        return Forecaster(subject(), batch=batch).reference(gpu("h100"))

    small = reference(4)
    assert small.bound == "host"
    assert small.busy_batch is not None
    assert reference(small.busy_batch // 2).bound == "host"
    large = reference(2 * small.busy_batch)
    assert large.bound != "host"
    assert large.busy_batch is None
    assert Forecaster(subject(), batch=4, largest=False).reference(gpu("h100")).busy_batch is None


class Sequence(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **given: bool) -> None:
        super().__init__()
        self.layers = kind(6, 8, 2, batch_first=True, **given)
        self.head = nn.Linear(8 * (1 + bool(given)), 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(rows)[0][:, -1])


def of_length(steps: int, kind: type[nn.RNNBase], **given: bool) -> Subject:
    batch = torch.randn(4, steps, 6), torch.zeros(4, dtype=torch.int64)
    return replace(subject(Sequence(kind, **given)), batches=[batch])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("given", [{}, {"bidirectional": True}], ids=["one way", "both ways"])
def test_a_recurrent_layer_is_traced_as_cudnn_runs_it(
    kind: type[nn.RNNBase], given: dict[str, bool]
) -> None:
    short = traced(of_length(5, kind, **given), "fp16")
    long = traced(of_length(200, kind, **given), "fp16")
    assert len(long.calls) == len(short.calls)  # calls do not grow with the sequence
    steps = [call for call in long.calls if call.op.kind == "recurrent"]
    layers = 2 * (1 + len(given))
    assert {call.phase: call.count for call in steps} == {
        "forward": 200 * layers,
        "backward": 200 * layers,
    }
    assert {call.op.format for call in steps} == {"fp16"}
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind] * 8
    ways = 1 + len(given)
    products = 200 * 4 * gates * sum(ways * (width + 8) for width in (6, 8 * ways))
    of_head = 2 * 3 * 4 * 8 * ways * 10
    assert long.flops == 2 * 3 * products + of_head
    assert not long.unknown


def test_the_optimizer_of_a_scaled_step_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def real(*_: object, **__: object) -> None:
        raise AssertionError("a kernel ran on real tensors")

    monkeypatch.setattr("torch._subclasses.fake_tensor.run_fallback_kernel", real)
    assert any(call.op.name == "_fused_sgd_" for call in traced(subject(), "fp16").calls)


def test_a_spent_budget_ends_the_trace_and_keeps_the_recipes_before() -> None:
    left = iter([False] * 10_000)

    def check() -> None:
        if next(left, True):
            raise BudgetSpentError

    forecaster = Forecaster(subject(), largest=False, check=check)
    forecaster.reference(gpu("t4"))
    left = iter([])
    found = forecasts(forecaster, ["fp16", "o2"], [gpu("t4"), gpu("h100")])
    assert [each.recipe for each in found] == ["fp32", "tf32"]
    with pytest.raises(UserError, match=r"before one step of net was traced.*--budget 10m"):
        forecasts(Forecaster(subject(), check=check), ["fp16"], [gpu("t4")])


def test_the_budget_of_the_command_covers_tracing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "BUDGET", 0.0)
    asked = ["advise", "timm:resnet18", "--gpu", "t4", "--shape", "3x32x32"]
    assert main(asked) == 2
    assert "before one step of resnet18 was traced" in capsys.readouterr().err


def test_intervals_contain_the_published_speeds_of_gpus_that_no_fit_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Images a second of ResNet-50 in NCHW; the speed hardly depends on such a large batch.
    with (ROOT / "benchmarks" / "data" / "newest_gpus.csv").open(newline="") as file:
        speeds = [row for row in csv.DictReader(file) if row["task"] == "resnet50"]
    asked = ["advise", "timm:resnet50", "--gpu", "gh200,h200,b200", "--batch-size", "512", "--json"]
    assert main([*asked, "--recipes", "fp16"]) == 0
    rows = json.loads(capsys.readouterr().out)["predicted"]["rows"]
    found = {(row["gpu"], row["recipe"]): row["predicted_samples_per_second"] for row in rows}
    assert len(speeds) == len(found) == 6
    for row in speeds:
        predicted = found[row["gpu"], row["precision"].replace("autocast", "fp16")]
        assert predicted["low"] < float(row["samples_per_s"]) < predicted["high"], row
