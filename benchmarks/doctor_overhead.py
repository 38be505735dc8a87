"""Measures the overhead of doctor's watch, and of other tools, on a training step.

The variants take turns on the same model, because the addresses of its tensors make a step some
percent faster or slower. Only the tools with the largest overhead, which need less precision, have
separate models. A turn is one step that does not count, and a few measured ones. The time of a turn
is that of its fastest step, in CPU time on one thread, because other programs can only add time. A
ratio is the median over rounds of the time of a turn to that of the plain turn in the same round.
Its interval contains 95 % of the medians of resampled rounds. The tools with the largest overhead
take only every third turn.

The work of doctor does not depend on the number of images in a batch, and its time is less than the
variation of a whole step. So it is measured as a difference between steps of two images, and given
as a share of the whole step in the same round. The row `nothing again` is a second plain step,
measured in the same way; it shows the error of the method. On a CPU, doctor computes the norms of
all gradients in every eighth step, and compares the parameters in every hundredth. These steps have
separate rows, and the row `halfstep watch` is the weighted mean of all kinds of steps.

    pip install transformers sherlorch mixed-precision-nanny    # the peers; optional
    python benchmarks/doctor_overhead.py                        # fifteen minutes
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import numpy as np
import quiet_machine
import timm
import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Watch
from halfstep.doctor.actions.last_step import LastStep
from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.signals.values import numbers, samples
from halfstep.train.environment import describe

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "doctor_overhead.json"
BATCH = 16
SIZE = 64
ALWAYS_ON = "halfstep watch"
SHARES = {"resnet18": 0.6, "vit_tiny": 0.25, "mlp": 0.15}
LEAST_ROUNDS = 6
SELDOM = 3
FEW = 2
TURNS = 4


@dataclass(frozen=True)
class Row:
    """The times of a variant's steps, relative to the plain steps of the same rounds.

    Attributes:
        model: The name of the model.
        variant: The name of the variant.
        milliseconds: CPU time of a step, the median over rounds.
        ratio: The time relative to the plain step of the same round, the median over rounds.
        low: Lower end of the ratio's interval.
        high: Upper end of the ratio's interval.
        rounds: The number of rounds.
    """

    model: str
    variant: str
    milliseconds: float
    ratio: float
    low: float
    high: float
    rounds: int


class Training:
    """A model with an optimizer and a batch.

    Args:
        model: "resnet18", "vit_tiny" or "mlp".
        batch: The number of images in the batch.
    """

    def __init__(self, model: str, batch: int = BATCH) -> None:
        torch.manual_seed(0)
        if model == "mlp":
            self.model: nn.Module = nn.Sequential(
                nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, 10)
            )
        else:
            options: dict[str, Any] = {"img_size": SIZE} if model == "vit_tiny" else {}
            name = "vit_tiny_patch16_224" if model == "vit_tiny" else model
            self.model = timm.create_model(name, num_classes=10, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images = torch.randn(batch, 3, SIZE, SIZE)
        self.labels = torch.randint(10, (batch,))

    def step(self) -> None:
        """Take a training step on the batch."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


class Variant:
    """A tool that watches a training, with the times of its steps.

    Args:
        name: The name of the variant in the table.
        training: The model that is trained.
        turn: Lets the tool watch the training until the stack closes.
    """

    def __init__(
        self, name: str, training: Training, turn: Callable[[ExitStack, Training], Watch | None]
    ) -> None:
        self.name = name
        self.training = training
        self._turn = turn
        self.seconds: dict[int, list[float]] = {}
        self.whole: dict[int, list[float]] = {}
        self.looks: dict[int, list[float]] = {}

    def run(self, number: int, steps: int) -> None:
        """Take a turn: one uncounted step, the measured steps, and doctor's two rare kinds."""
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            watch = self._turn(stack, self.training)
            self.training.step()
            self._set_step(watch)
            self.seconds[number] = [self._time() for _ in range(steps)]
            if watch is not None and self.name == ALWAYS_ON:
                self.whole[number] = [self._time_rare(watch, whole=True) for _ in range(steps)]
                self.looks[number] = [self._time_rare(watch, close=True) for _ in range(steps)]

    def _time_rare(self, watch: Watch, *, whole: bool = False, close: bool = False) -> float:
        self._set_step(watch, whole=whole, close=close)
        return self._time()

    def _set_step(self, watch: Watch | None, *, whole: bool = False, close: bool = False) -> None:
        """Set doctor's counters so that the next step is a usual one, or one of the rare kinds."""
        if watch is None:
            return
        registry, series = watch.bus.registry, watch.bus[Measuring].series  # what it decides by
        registry.model(self.training.model).calls = samples.EVERY + 1
        registry.optimizer(self.training.optimizer).steps = samples.EVERY + (not close)
        series._taken[0] = numbers.EVERY * numbers.FIRST + (not whole)  # noqa: SLF001

    def _time(self) -> float:
        start = time.process_time()
        self.training.step()
        return time.process_time() - start


def unwatched(stack: ExitStack, training: Training) -> None:
    """Watch nothing."""
    del stack, training


def halfstep_watch(stack: ExitStack, training: Training) -> Watch:
    """Watch with everything that doctor does by default."""
    return _watched(stack, training)


def grammar_alone(stack: ExitStack, training: Training) -> Watch:
    """Record only the order of the loop's calls, without numbers."""
    watch = _watched(stack, training)
    watch.bus[Measuring].take = _nothing  # type: ignore[method-assign]  # what is left: the grammar
    return watch


def _watched(stack: ExitStack, training: Training) -> Watch:
    watch = Watch()
    watch.know([training.model], [training.optimizer], None)
    watch.bus[LastStep].look = _nothing  # type: ignore[method-assign]  # the end is no step
    stack.callback(_assert_sound, watch)
    stack.enter_context(watch)
    return watch


def _nothing(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _assert_sound(watch: Watch) -> None:
    assert not watch.troubles, watch.troubles


def detect_anomaly(stack: ExitStack, training: Training) -> None:
    """Use torch.autograd.detect_anomaly."""
    del training
    stack.enter_context(torch.autograd.detect_anomaly())


def debug_underflow_overflow(stack: ExitStack, training: Training) -> None:
    """Use Hugging Face's DebugUnderflowOverflow, whose hooks stay on the model."""
    del stack
    if not hasattr(training, "watcher"):
        kind = importlib.import_module("transformers.debug_utils").DebugUnderflowOverflow
        training.watcher = kind(training.model)  # type: ignore[attr-defined]  # kept alive


def sherlorch(stack: ExitStack, training: Training) -> None:
    """Use sherlorch's tracker, and reset it before each step, as its documentation says."""
    tracker = importlib.import_module("sherlorch").ProvenanceTracker()
    stack.enter_context(tracker)
    tracker.watch(training.model)
    handle = training.model.register_forward_pre_hook(lambda *_: tracker.reset())
    stack.callback(handle.remove)


def mixed_precision_nanny(stack: ExitStack, training: Training) -> None:
    """Use mixed-precision-nanny's hooks; its traces of every hundredth step are not measured."""
    kind = importlib.import_module("mixed_precision_nanny").MixedPrecisionNanny
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    nanny = stack.enter_context(kind(training.model, output_dir=folder, verbose=False))
    step, count = training.step, iter(range(1, 10**6))

    def around() -> None:
        with nanny.step(next(count)):
            step()

    training.step = around  # type: ignore[method-assign]  # until the stack closes
    stack.callback(lambda: setattr(training, "step", step))


def module_hooks(stack: ExitStack, training: Training) -> None:
    """Use a forward hook on each module that checks whether the output is finite."""
    for module in training.model.modules():
        stack.callback(module.register_forward_hook(_is_finite).remove)


def _is_finite(module: nn.Module, args: Any, output: torch.Tensor) -> None:
    del module, args
    output.isfinite().all()


def debug_mode(stack: ExitStack, training: Training) -> None:
    """Use torch's DebugMode with modules and stack traces, a new one for each step."""
    kind = importlib.import_module("torch.utils._debug_mode").DebugMode
    step = training.step

    def around() -> None:
        with kind(record_nn_module=True, record_stack_trace=True):
            step()

    training.step = around  # type: ignore[method-assign]  # until the stack closes
    stack.callback(lambda: setattr(training, "step", step))


WATCHES = {
    "nothing again": unwatched,
    "halfstep grammar alone": grammar_alone,
    ALWAYS_ON: halfstep_watch,
    "module hooks": module_hooks,
    "detect_anomaly": detect_anomaly,
    "HF DebugUnderflowOverflow": debug_underflow_overflow,
    "sherlorch": sherlorch,
    "mixed-precision-nanny": mixed_precision_nanny,
    "torch DebugMode": debug_mode,
}
OURS = {"nothing again", "halfstep grammar alone", ALWAYS_ON}
COSTLY = {"HF DebugUnderflowOverflow", "sherlorch", "mixed-precision-nanny", "torch DebugMode"}
PEERS = {
    "HF DebugUnderflowOverflow": "transformers",
    "sherlorch": "sherlorch",
    "mixed-precision-nanny": "mixed_precision_nanny",
    "torch DebugMode": "torch.utils._debug_mode",
}


def missing(names: list[str]) -> dict[str, str]:
    """Return the reason why a peer cannot be measured, by name of the peer."""
    reasons = {}
    for name in names:
        try:
            if name in PEERS:
                importlib.import_module(PEERS[name])
        except ImportError as error:
            reasons[name] = f"not measured: {error}"
    return reasons


def measure(
    model: str, names: list[str], seconds: float, steps: int
) -> tuple[list[Row], dict[str, str]]:
    """Measure variants on a model.

    Args:
        model: The name of the model.
        names: The names of the variants.
        seconds: The time for all rounds.
        steps: The number of measured steps in a turn.

    Returns:
        The rows, and for each variant with which the training fails, the reason.
    """
    began = time.monotonic()
    shared, few = Training(model), Training(model, FEW)
    plain, plain_few = Variant("nothing", shared, unwatched), Variant("nothing", few, unwatched)
    variants, ours, failed = [plain], [plain_few], {}
    for name in names:
        training = few if name in OURS else Training(model) if name in COSTLY else shared
        variant = Variant(name, training, WATCHES[name])
        try:
            variant.run(-1, 1)
        except RuntimeError as error:
            failed[f"{name}, {model}"] = f"training fails: {error}".partition(". ")[0]
        else:
            (ours if name in OURS else variants).append(variant)
    number = 0
    while number < LEAST_ROUNDS or time.monotonic() - began < seconds:
        due = [each for each in variants if each.name not in COSTLY or number % SELDOM == 0]
        _take_turns(due, number, steps)
        for turn in range(number * TURNS, (number + 1) * TURNS):
            _take_turns(ours, turn, steps)
        number += 1
    return [
        *(row(model, each.name, each.seconds, plain.seconds) for each in variants[:1]),
        *(one for each in ours[1:] for one in _rows_of(model, each, plain_few, plain)),
        *(row(model, each.name, each.seconds, plain.seconds) for each in variants[1:]),
    ], failed


def _take_turns(variants: list[Variant], number: int, steps: int) -> None:
    first = number % len(variants)
    for variant in variants[first:] + variants[:first]:
        gc.collect()
        gc.disable()
        variant.run(number, steps)
        gc.enable()


def _rows_of(model: str, variant: Variant, few: Variant, plain: Variant) -> list[Row]:
    """Return the rows of a variant that is measured on few images.

    Args:
        model: The name of the model.
        variant: The variant.
        few: The plain steps on the same number of images.
        plain: The plain steps on the whole batch.
    """

    def added(*parts: tuple[float, dict[int, list[float]]]) -> dict[int, list[float]]:
        taken = set(few.seconds).intersection(*(seconds for _, seconds in parts)) - {-1}
        return {
            each: [
                min(plain.seconds[each // TURNS])
                + sum(share * min(seconds[each]) for share, seconds in parts)
                - min(few.seconds[each])
            ]
            for each in taken
        }

    whole_step = {each: plain.seconds[each // TURNS] for each in few.seconds if each >= 0}
    if variant.name != ALWAYS_ON:
        return [row(model, variant.name, added((1.0, variant.seconds)), whole_step)]
    whole, close = 1 / numbers.EVERY, 1 / samples.EVERY
    all_steps = added(
        (1 - whole - close, variant.seconds), (whole, variant.whole), (close, variant.looks)
    )
    return [
        row(model, f"{variant.name}, all gradients", added((1.0, variant.whole)), whole_step),
        row(model, f"{variant.name}, a close look", added((1.0, variant.looks)), whole_step),
        row(model, variant.name, all_steps, whole_step),
    ]


def row(
    model: str, name: str, seconds: dict[int, list[float]], plain: dict[int, list[float]]
) -> Row:
    """Return the row of a variant.

    Args:
        model: The name of the model.
        name: The name of the variant.
        seconds: The seconds of the variant's steps, by round.
        plain: The seconds of the plain steps, by round.
    """
    taken = sorted((set(plain) & set(seconds)) - {-1})
    mine = _fastest(seconds, taken)
    ratios = mine / _fastest(plain, taken)
    chosen = np.random.default_rng(0).integers(0, len(taken), (2000, len(taken)))
    low, high = np.quantile(np.median(ratios[chosen], axis=1), [0.025, 0.975])
    return Row(
        model=model,
        variant=name,
        milliseconds=round(1000 * float(np.median(mine)), 2),
        ratio=round(float(np.median(ratios)), 4),
        low=round(float(low), 4),
        high=round(float(high), 4),
        rounds=len(taken),
    )


def _fastest(seconds: dict[int, list[float]], taken: list[int]) -> Any:
    return np.array([min(seconds[each]) for each in taken])


def main() -> None:
    """Measure, print the rows, and write the results and the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="resnet18,vit_tiny,mlp")
    parser.add_argument("--variants", default=",".join(WATCHES))
    parser.add_argument("--seconds", type=float, default=900, help="of all models together")
    parser.add_argument("--steps", type=int, default=3, help="measured in a turn")
    parser.add_argument("--no-write", action="store_true", help="leave the results file alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.variants.split(",")
    absent = missing(names)
    names = [each for each in names if each not in absent]
    rows = []
    models = given.models.split(",")
    share = given.seconds / sum(SHARES[each] for each in models)
    for model in models:
        found, failed = measure(model, names, share * SHARES[model], given.steps)
        rows += found
        absent |= failed
        for each in found:
            print(
                f"{each.model:<10} {each.variant:<30} {each.milliseconds:>9.2f} ms  "
                f"{each.ratio:.3f}  [{each.low:.3f}, {each.high:.3f}]",
                flush=True,
            )
    for name, reason in absent.items():
        print(f"{name}: {reason}")
    if not given.no_write:
        record = {
            "environment": describe(torch.device("cpu")),
            "absent": absent,
            "batch": BATCH,
            "pixels": SIZE,
            "rows": [asdict(each) for each in rows],
        }
        quiet_machine.keep(RESULTS, record)
        docs_table.put("doctor.md", "overhead", table(record))


def table(record: dict[str, Any]) -> list[str]:
    """Return the table of the docs: the time that each tool adds to a step, in percent."""
    rows = {(each["model"], each["variant"]): each for each in record["rows"]}
    models = list(dict.fromkeys(each["model"] for each in record["rows"]))
    variants = list(dict.fromkeys(each["variant"] for each in record["rows"]))
    lines = [f"| | {' | '.join(models)} |", f"| --- |{' --- |' * len(models)}"]
    for variant in variants:
        cells = [_cell(rows.get((model, variant))) for model in models]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row["variant"] == "nothing":
        return f"{row['milliseconds']:.1f} ms"
    added, low, high = (100 * (row[name] - 1) for name in ("ratio", "low", "high"))
    return f"{added:+.1f} % ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    main()
