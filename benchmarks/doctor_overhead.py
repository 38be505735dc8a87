"""What watching costs: doctor's overhead on a training step, beside other tools', in one run.

The variants take turns, so that whatever else the machine does slows them alike. A step is as fast
as the fastest quarter of its kind, in CPU time on one thread: other programs only ever add to that,
by way of caches and memory. A ratio's interval holds 95 % of resampled rounds; `nothing again`, the
plain step a second time, says how far to trust it. Steps that doctor looks at closely, every
hundredth, are a row of their own, and the row `halfstep watch` has a hundredth of them.

    pip install transformers sherlorch mixed-precision-nanny    # the peers; optional
    python benchmarks/doctor_overhead.py
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

import numpy as np
import timm
import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Watch
from halfstep.files import json_text, write_atomically
from halfstep.train.environment import describe

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "doctor_overhead.json"
BATCH = 16
SIZE = 64
EVERY = 100
ALWAYS_ON = "halfstep watch"
# The shorter a step, the more of them it takes.
ROUNDS = {"resnet18": 1, "vit_tiny": 1, "mlp": 5}


@dataclass(frozen=True)
class Row:
    """A variant's steps beside the plain steps of the same rounds.

    Attributes:
        model: What is trained.
        variant: What watches it.
        milliseconds: CPU time of a step, first quartile.
        ratio: To the plain step's.
        low: Lower end of the ratio's interval.
        high: Upper end.
        rounds: How many there were.
    """

    model: str
    variant: str
    milliseconds: float
    ratio: float
    low: float
    high: float
    rounds: int


class Training:
    """A model of a variant's own, and its step.

    Args:
        model: "resnet18", "vit_tiny" or "mlp".
    """

    def __init__(self, model: str) -> None:
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
        self.images = torch.randn(BATCH, 3, SIZE, SIZE)
        self.labels = torch.randint(10, (BATCH,))

    def step(self) -> None:
        """Train on the batch once."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


class Variant:
    """A way to watch, and what a step under it costs.

    Args:
        name: What the table calls it.
        model: What is trained.
        turn: Makes a training watched until the stack closes.
    """

    def __init__(
        self, name: str, model: str, turn: Callable[[ExitStack, Training], Watch | None]
    ) -> None:
        self.name = name
        self.training = Training(model)
        self._turn = turn
        self.seconds: list[list[float]] = []
        self.looks: list[list[float]] = []

    def run(self, steps: int) -> None:
        """Take a turn: a step that does not count, the measured ones, and a close look."""
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            watch = self._turn(stack, self.training)
            self._set_step(watch, EVERY + 1)
            self.training.step()
            self.seconds.append([self._time() for _ in range(steps)])
            if watch is not None:
                self._set_step(watch, EVERY)
                self.looks.append([self._time()])

    def _set_step(self, watch: Watch | None, number: int) -> None:
        if watch is not None:
            watch._receiver.parties.optimizer(self.training.optimizer).steps = number  # noqa: SLF001  # it decides on close looks

    def _time(self) -> float:
        start = time.process_time()
        self.training.step()
        return time.process_time() - start


def unwatched(stack: ExitStack, training: Training) -> None:
    """Nothing."""
    del stack, training


def halfstep_watch(stack: ExitStack, training: Training) -> Watch:
    """All that is always on."""
    return _watched(stack, training)


def grammar_alone(stack: ExitStack, training: Training) -> Watch:
    """The order of the loop's calls, without the numbers."""
    watch = _watched(stack, training)
    watch._receiver._measure = _nothing  # type: ignore[assignment]  # noqa: SLF001  # what is left is the grammar
    return watch


def _watched(stack: ExitStack, training: Training) -> Watch:
    watch = Watch()
    watch.know([training.model], [training.optimizer], None)
    watch._look_back = _nothing  # type: ignore[method-assign]  # noqa: SLF001  # the end is no step
    stack.callback(_assert_sound, watch)
    stack.enter_context(watch)
    return watch


def _nothing(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


def _assert_sound(watch: Watch) -> None:
    assert not watch.troubles, watch.troubles


def detect_anomaly(stack: ExitStack, training: Training) -> None:
    """torch.autograd.detect_anomaly."""
    del training
    stack.enter_context(torch.autograd.detect_anomaly())


def debug_underflow_overflow(stack: ExitStack, training: Training) -> None:
    """HF's DebugUnderflowOverflow, whose hooks stay on its own model."""
    del stack
    if not hasattr(training, "watcher"):
        kind = importlib.import_module("transformers.debug_utils").DebugUnderflowOverflow
        training.watcher = kind(training.model)  # type: ignore[attr-defined]  # kept alive


def sherlorch(stack: ExitStack, training: Training) -> None:
    """Its tracker, reset before each step as its documentation says."""
    tracker = importlib.import_module("sherlorch").ProvenanceTracker()
    stack.enter_context(tracker)
    tracker.watch(training.model)
    handle = training.model.register_forward_pre_hook(lambda *_: tracker.reset())
    stack.callback(handle.remove)


def mixed_precision_nanny(stack: ExitStack, training: Training) -> None:
    """Its hooks; it traces every hundredth step, none of which is measured."""
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
    """A forward hook on every module that asks whether its output is finite."""
    for module in training.model.modules():
        stack.callback(module.register_forward_hook(_is_finite).remove)


def _is_finite(module: nn.Module, args: Any, output: torch.Tensor) -> None:
    del module, args
    output.isfinite().all()


def debug_mode(stack: ExitStack, training: Training) -> None:
    """DebugMode of torch with modules and stack traces, one for each step."""
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
PEERS = {
    "HF DebugUnderflowOverflow": "transformers",
    "sherlorch": "sherlorch",
    "mixed-precision-nanny": "mixed_precision_nanny",
    "torch DebugMode": "torch.utils._debug_mode",
}


def missing(names: list[str]) -> dict[str, str]:
    """Return why peers cannot be measured, by name."""
    reasons = {}
    for name in names:
        try:
            if name in PEERS:
                importlib.import_module(PEERS[name])
        except ImportError as error:
            reasons[name] = f"not measured: {error}"
    return reasons


def measure(
    model: str, names: list[str], rounds: int, steps: int
) -> tuple[list[Row], dict[str, str]]:
    """Measure variants on a model.

    Returns:
        The rows, and why there is none of a variant that the model does not train under.
    """
    plain = Variant("nothing", model, unwatched)
    variants, failed = [plain], {}
    for name in names:
        variant = Variant(name, model, WATCHES[name])
        try:
            variant.run(1)
        except RuntimeError as error:
            failed[f"{name}, {model}"] = f"training fails: {error}".partition(". ")[0]
        else:
            variants.append(variant)
    for number in range(rounds + 1):
        turn = number % len(variants)
        for variant in variants[turn:] + variants[:turn]:
            gc.collect()
            gc.disable()
            variant.run(steps)
            gc.enable()
        if number == 0:  # Caches are filled, pools allocated.
            for variant in variants:
                variant.seconds.clear()
                variant.looks.clear()
    seconds = np.array(plain.seconds)
    rows = []
    for each in variants:
        parts = [(1.0, np.array(each.seconds))]
        if each.name == ALWAYS_ON:
            close = np.array(each.looks)
            rows.append(row(model, f"{each.name}, a close look", [(1.0, close)], seconds))
            parts = [(1 - 1 / EVERY, parts[0][1]), (1 / EVERY, close)]
        rows.append(row(model, each.name, parts, seconds))
    return rows, failed


def row(model: str, name: str, parts: list[tuple[float, Any]], plain: Any) -> Row:
    """Return the figures of a variant.

    Args:
        model: What is trained.
        name: The variant's.
        parts: Shares of all steps, and seconds of such steps, shape (rounds, steps in a turn).
        plain: Seconds of plain steps, of the same shape.
    """
    chosen = np.random.default_rng(0).integers(0, len(plain), (2000, len(plain)))
    ratios = [_fast(parts, rounds) / _fast([(1, plain)], rounds) for rounds in chosen]
    low, high = np.quantile(ratios, [0.025, 0.975])
    everything = np.arange(len(plain))
    fast = _fast(parts, everything)
    return Row(
        model=model,
        variant=name,
        milliseconds=round(1000 * fast, 2),
        ratio=round(fast / _fast([(1, plain)], everything), 4),
        low=round(float(low), 4),
        high=round(float(high), 4),
        rounds=len(plain),
    )


def _fast(parts: list[tuple[float, Any]], rounds: Any) -> float:
    return float(sum(share * np.quantile(seconds[rounds], 0.25) for share, seconds in parts))


def main() -> None:
    """Measure, print the table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="resnet18,vit_tiny,mlp")
    parser.add_argument("--variants", default=",".join(WATCHES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=3, help="measured in a turn")
    parser.add_argument("--no-write", action="store_true", help="leave the results file alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.variants.split(",")
    absent = missing(names)
    names = [each for each in names if each not in absent]
    rows = []
    for model in given.models.split(","):
        found, failed = measure(model, names, given.rounds * ROUNDS[model], given.steps)
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
        write_atomically(RESULTS, json_text(record))


if __name__ == "__main__":
    main()
