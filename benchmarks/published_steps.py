"""Traces training steps whose speed was published, with the settings of the publication.

- timm's `benchmark.py`: autocast to fp16, unfused attention, SGD with Nesterov momentum in a loop
  over parameters, and gradients that are zeroed in place.
- NVIDIA's DeepLearningExamples, as in Lambda's logs: ResNet-50 under autocast, Apex O2 or fp32, and
  BERT on SQuAD with sequences of length 384, under Apex O2 (FusedAdam) or fp32 (an Adam in a loop
  that clips each parameter's gradient separately).

A trace takes one or two seconds of a core. It is stored in a cache directory, because a fit needs
hundreds of traces.

    python benchmarks/published_steps.py --data DIR --cache /tmp/traces
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import random
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
import torchvision
from nvidia_bert import SIZES, Bert, LoopedAdam
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from halfstep.advise.predict.trace import Call, Op, Trace, recorded
from halfstep.kernels.cuda_policy import cuda_autocast_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Measurement:
    """One published speed.

    Attributes:
        model: The published name of the model.
        build: The name by which the model is built here: one of timm or `_BUILDS`, or "nvidia_" and
            a task.
        family: The name of a group of models with the same code.
        precision: "autocast", "o2", "tf32" or "fp32".
        layout: "nchw" or "nhwc".
        batch: Samples in a step.
        image_size: Side of the square images in pixels; for BERT, the length of a sequence.
        gpu: A key of the GPU table.
        seconds: Seconds of a step.
        machine: The machine in Lambda's logs; "" for timm's speeds.
        year: The year of the run in Lambda's logs; 0 if it is unknown.
    """

    model: str
    build: str
    family: str
    precision: str
    layout: str
    batch: int
    image_size: int
    gpu: str
    seconds: float
    machine: str = ""
    year: int = 0

    @property
    def trace_name(self) -> str:
        """The name of the trace, which is the same for all measurements of the same step."""
        precision = "fp32" if self.precision == "tf32" else self.precision
        return f"{self.build}-{self.image_size}-{self.batch}-{self.layout}-{precision}"


_BUILDS: dict[str, tuple[str, dict[str, int]]] = {
    "ig_resnext101_32x16d": ("resnext101_32x16d", {}),
    "ig_resnext101_32x32d": ("resnext101_32x32d", {}),
    "ig_resnext101_32x48d": ("resnext101_32x8d", {"base_width": 48}),
    "ecaresnext50t_32x4d": ("ecaresnext26t_32x4d", {}),
}
"""Models that timm builds differently today than when their speed was published.

Each has a name and arguments that build the published model. Today, timm maps all of
`ig_resnext101_*` to the narrowest of them. `ecaresnext50t_32x4d` had two blocks per stage until
timm 0.8, like `ecaresnext26t_32x4d`, which has the same published speed.
"""


def measurements(data: Path) -> list[Measurement]:
    """Read the published speeds from the CSV files of a directory."""
    found = []
    for path in sorted(data.glob("timm_train*.csv")):
        found += [
            Measurement(
                model=row["model"],
                build=row["model"] if row["model"] in _BUILDS else row["timm_name"],
                family=row["family"],
                precision="autocast",
                layout=row["layout"],
                batch=int(row["batch_size"]),
                image_size=int(row["image_size"]),
                gpu=row["gpu"],
                seconds=int(row["batch_size"]) / float(row["samples_per_s"]),
            )
            for row in _rows(path)
        ]
    for path in sorted(data.glob("lambda_logs*.csv")):
        found += [
            Measurement(
                model=row["task"],
                build=f"nvidia_{row['task']}",
                family=row["task"].split("_")[0],
                precision=_PRECISIONS[row["precision"]],
                layout="nchw",
                batch=int(row["batch_size"]),
                image_size=224 if row["task"] == "resnet50" else 384,
                gpu="v100_32" if row["machine"] == "V100" else row["gpu"],
                seconds=int(row["batch_size"]) / float(row["samples_per_s"]),
                machine=row["machine"],
                year=int(row["run_date"][-4:] or 0),
            )
            for row in _rows(path)
        ]
    return found


_PRECISIONS = {
    "fp16-autocast": "autocast",
    "apex-O2": "o2",
    "apex-O2-or-static-fp16": "o2",
    "tf32": "tf32",
    "fp32": "fp32",
}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def trace_of(measurement: Measurement) -> Trace:
    """Trace the step of a measurement."""
    if measurement.build.startswith("nvidia_"):
        return _nvidia(measurement)
    return _timm(measurement)


def _timm(asked: Measurement) -> Trace:
    name, given = _BUILDS.get(asked.build, (asked.build, {}))
    try:
        with torch.device("meta"):
            real = timm.create_model(name, **given)
    except (RuntimeError, NotImplementedError):
        real = timm.create_model(name, **given)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _fake(real, channels_last=asked.layout == "nhwc")
        optimizer = torch.optim.SGD(
            model.parameters(), 1e-4, momentum=0.9, nesterov=True, foreach=False
        )
        for param in model.parameters():
            param.grad = torch.empty_like(param)
            optimizer.state[param]["momentum_buffer"] = torch.empty_like(param)
        images = torch.empty(asked.batch, 3, asked.image_size, asked.image_size)
        if asked.layout == "nhwc":
            images = images.to(memory_format=torch.channels_last)
        labels = torch.empty(asked.batch, dtype=torch.int64)

        def loss() -> torch.Tensor:
            out = model(images)
            return functional.cross_entropy(
                out[0] if isinstance(out, (tuple, list)) else out, labels
            )

        return _recorded(
            loss,
            held=[images, labels, *_state(model, optimizer)],
            before=lambda: optimizer.zero_grad(set_to_none=False),
            after=optimizer.step,
            autocast=True,
            batch=asked.batch,
        )


def _nvidia(asked: Measurement) -> Trace:  # noqa: C901, PLR0912  (two models, three precisions)
    with torch.device("meta"):
        if asked.model == "resnet50":
            real: nn.Module = torchvision.models.resnet50()
        else:
            real = Bert(**SIZES[asked.model])
    half = asked.precision == "o2"
    if half:
        real.half()
        for each in real.modules():
            if isinstance(each, nn.BatchNorm2d):
                each.float()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _fake(real)
        masters = list(model.parameters())
        if half:
            masters = [
                nn.Parameter(torch.empty_like(param, dtype=torch.float32))
                for param in model.parameters()
            ]
        if asked.model == "resnet50":
            inputs = [torch.empty(asked.batch, 3, 224, 224, dtype=torch.half if half else None)]
            optimizer: Any = torch.optim.SGD(masters, 0.1, momentum=0.875, foreach=False)
            state = {"momentum_buffer"}
        else:
            shape = asked.batch, asked.image_size
            inputs = [torch.empty(shape, dtype=torch.int64) for _ in range(3)]
            if half:
                optimizer = torch.optim.Adam(masters, 1e-4, fused=True)
            else:
                optimizer = LoopedAdam(masters)
            state = {"exp_avg", "exp_avg_sq"}
        for param in masters:
            for name in state:
                optimizer.state[param][name] = torch.empty_like(param)
            if "exp_avg" in state:
                optimizer.state[param]["step"] = torch.zeros(())
        labels = torch.empty(asked.batch, dtype=torch.int64)
        scale = torch.empty(())

        def loss() -> torch.Tensor:
            out = model(*inputs)
            heads = out.unbind(-1) if out.dim() == 3 else [out]
            found = [functional.cross_entropy(head.float(), labels) for head in heads]
            total = sum(found[1:], start=found[0])
            return total if asked.precision in ("fp32", "tf32") else total * scale

        def update() -> None:
            grads = [param.grad for param in model.parameters()]
            if half:
                for param in masters:
                    param.grad = torch.empty_like(param)
                torch._foreach_copy_([param.grad for param in masters], grads)
            if asked.precision not in ("fp32", "tf32"):
                torch._foreach_mul_([param.grad for param in masters], 0.5)
            if half and asked.model != "resnet50":
                torch.nn.utils.clip_grad_norm_(masters, 1.0, foreach=True)
            optimizer.step()
            if half:
                torch._foreach_copy_(
                    list(model.parameters()), [param.detach() for param in masters]
                )

        return _recorded(
            loss,
            held=[*inputs, labels, *_state(model, optimizer), *masters],
            before=lambda: None,
            after=lambda: _without_grad(update),
            autocast=asked.precision == "autocast",
            batch=asked.batch,
        )


def _without_grad(update: Callable[[], None]) -> None:
    with torch.no_grad():
        update()


def _recorded(
    loss: Callable[[], torch.Tensor],
    *,
    held: list[torch.Tensor],
    before: Callable[[], Any],
    after: Callable[[], Any],
    autocast: bool,
    batch: int,
) -> Trace:
    region = torch.autocast("cpu", dtype=torch.float16) if autocast else nullcontext()
    with cuda_autocast_policy(), recorded(iter(held)) as recorder:
        recorder.phase = "optimizer"
        before()
        recorder.phase = "forward"
        with region:
            value = loss()
        recorder.forward_is_done()
        value.backward()
        recorder.phase = "optimizer"
        after()
        return recorder.trace(batch)


def _fake(real: nn.Module, *, channels_last: bool = False) -> nn.Module:
    """Return a copy of a model in training mode, whose parameters and buffers are fake tensors."""
    memo: dict[int, Any] = {}
    for tensor in [*real.parameters(), *real.buffers()]:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        if channels_last and tensor.dim() == 4:
            fake = fake.to(memory_format=torch.channels_last)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, tensor.requires_grad)
        memo.setdefault(id(tensor), fake)
    return copy.deepcopy(real, memo).train()


def _state(model: nn.Module, optimizer: Any) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    yield from (param.grad for param in model.parameters() if param.grad is not None)
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def saved(trace: Trace) -> dict[str, Any]:
    """Return a trace as plain data."""
    return asdict(trace)


def loaded(plain: dict[str, Any]) -> Trace:
    """Return a trace from plain data."""
    calls = tuple(
        Call(Op(**each["op"]), each["phase"], each["count"]) for each in plain.pop("calls")
    )
    return Trace(calls=calls, **plain)


def traced(asked: Measurement, cache: Path) -> Trace:
    """Return the trace of a measurement, from the cache if it is there."""
    path = cache / f"{asked.trace_name}.json"
    if not path.exists():
        fused = bool(timm.layers.use_fused_attn())
        timm.layers.set_fused_attn(enable=False)  # as in the timm of the measurements
        try:
            trace = trace_of(asked)
        finally:
            timm.layers.set_fused_attn(enable=fused)
        cache.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(saved(trace)))
    return loaded(json.loads(path.read_text()))


def in_turn(found: list[Measurement]) -> list[Measurement]:
    """Sort measurements so that the first ones contain models of all families."""
    by_family: dict[str, list[Measurement]] = defaultdict(list)
    for each in found:
        by_family[each.family].append(each)
    ranked = []
    for family in by_family.values():
        names = sorted({each.build for each in family})
        random.Random(0).shuffle(names)  # noqa: S311  (an order, no secret)
        ranked += [(names.index(each.build) / max(len(names), 12), each) for each in family]
    return [each for _, each in sorted(ranked, key=lambda pair: (pair[0], pair[1].trace_name))]


def main() -> None:
    """Trace the measurements that have no trace in the cache."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the directory of the CSV files")
    parser.add_argument("--cache", type=Path, required=True, help="where traces are kept")
    parser.add_argument("--only", default="", help="builds that begin with this")
    parser.add_argument("--layout", default="", help="of one layout alone")
    parser.add_argument("--families", default="", help="of these alone: cait,tnt")
    parser.add_argument("--as-nchw", action="store_true", help="NHWC steps in NCHW, which serves")
    given = parser.parse_args()
    for published in in_turn(measurements(given.data)):
        asked = replace(published, layout="nchw") if given.as_nchw else published
        if not asked.build.startswith(given.only) or given.layout not in asked.layout:
            continue
        if given.families and asked.family not in given.families.split(","):
            continue
        if (given.cache / f"{asked.trace_name}.json").exists():
            continue
        began = time.perf_counter()
        try:
            trace = traced(asked, given.cache)
            said = f"unknown {trace.unknown}" if trace.unknown else ""
        except Exception as error:  # noqa: BLE001  (what hundreds of models raise)
            said = f"not traced: {' '.join(str(error).split())[:200]}"
        print(f"{time.perf_counter() - began:6.1f} s  {asked.trace_name}  {said}", flush=True)


if __name__ == "__main__":
    main()
