"""Fits constants of the cost model to steps that were measured with current software.

    python benchmarks/fit_current.py --data DIR --cache DIR    # fit, and write constants and result
    python benchmarks/fit_current.py --check                   # only score the shipped constants

The inputs are `results/gpu/h200.json` (torch 2.11 on an H200) and `results/gpu/steps.json` (torch
2.11 on an H100), and with half their weight the logs of ResNet-50 and BERT on an H100 that
`fit_costs.py` describes, which keep the constants from following a few models only. `FITTED` lists
the steps that the constants are fitted to; the other steps are kept aside, and score the constants.
Besides, each model is left out of a fit once; intervals on Hopper are as wide as these errors need.
Steps that waited for the host are left out, because the time of a host is no property of a GPU. The
constants of `fit_costs.py` are the priors of the fit.

Result: `results/advise_current.json`, with every step, its part and its error; and the part
"current" of `src/halfstep/advise/predict/constants.json`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import h200
import numpy as np
from published_steps import measurements, traced
from scipy.optimize import least_squares

from halfstep.advise.predict import cost, interval
from halfstep.advise.predict.cost import Constants, step_time
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.workload import workload
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.advise.predict.trace import Call
    from halfstep.advise.predict.workload import Workload

GPU_RESULTS = Path(__file__).resolve().parent / "results" / "gpu"
RESULT = Path(__file__).resolve().parent / "results" / "advise_current.json"
FITTED = {
    ("h200", "resnet18", "256 x 224 px"),
    ("h200", "resnet50", "64 x 224 px"),
    ("h200", "vit_small_patch16_224", "256 x 224 px"),
    ("h100_sxm", "convnext_tiny", "64 x 224 px"),
}
"""The steps, by GPU, model and images, that the constants are fitted to; all others score them."""
PAGE = "advise-gpus-validation.md"
LOGS = 0.5
"""Weight of a log: its software is older."""
RECIPES = ("fp32", "tf32", "bf16", "fp16", "o2", "half", "half-bn32", "bf16-true")
HOST = 0.95
"""The share of a step's time, spent by the host to enqueue it, from which on the host limits it."""
LAUNCH = 55e-6
"""Seconds for a launch on the H100's host, where the host's time was not measured."""
SPREAD = {
    "half": 0.3, "tf32": 0.3, "fp32": 0.3, "weight": 0.2, "bandwidth": 0.3, "accesses": 0.6,
    "operands": 0.4, "operands_last": 0.4, "norm": 0.4, "norm_native": 0.7, "norm_native_last": 0.7,
    "pool_first": 1.0,
    "row_norm": 0.3, "copy": 0.2, "depthwise_full": 1.5, "attention_full": 1.0, "transposes": 0.2,
    "transposes_tf32": 0.7, "winograd": 0.3, "ramp": 0.5, "kernel": 0.3, "softmax": 0.3,
}  # fmt: skip
"""The constants that are fitted, with the standard deviation of the logarithm of each prior."""
EVERYWHERE = ("norm_native", "norm_native_last", "depthwise_full", "attention_full")
"""Constants of kernels of which published speeds have none: they hold for every architecture."""
GUESSES = {
    "norm_native": 0.4, "norm_native_last": 0.4, "pool_first": 0.05, "depthwise_full": 0.02,
    "attention_full": 0.3, "accesses": 8.0,
}  # fmt: skip
"""Priors, in round numbers, of constants that published speeds say nothing of, or little: current
kernels read several elements with an instruction."""
REPORTED = {"odd_groups_last": 0.35, "grouped_last": 0.85}
"""Constants without a measured step here: grouped convolutions in NHWC on an H200 were predicted up
to 2.3 times too slow where cuDNN 8 had no kernel for the groups, and 0.72 of the time elsewhere."""
NOISE = 0.05


@dataclass(frozen=True)
class Step:
    """A measured step beside its trace."""

    gpu: str
    model: str
    setting: str
    recipe: str
    seconds: float
    host: float
    calls: tuple[Call, ...]

    @property
    def fitted(self) -> bool:
        """Whether the constants are fitted to it."""
        return (self.gpu, self.model, self.setting.split(",")[0]) in FITTED

    @property
    def work(self) -> Workload:
        """What the cost model computes from."""
        return workload(self.calls, gpu(self.gpu), tf32=self.recipe == "tf32")


def steps() -> list[Step]:
    """Trace the measured steps, and return those that the GPU limits."""
    found: dict[tuple[Any, ...], Step] = {}
    forecasters: dict[Any, Any] = {}
    for name, file in (("h200", "h200.json"), ("h100_sxm", "steps.json")):
        for row in json.loads((GPU_RESULTS / file).read_text())["rows"]:
            recipe = row.get("recipe")
            if row.get("section", "step") != "step" or recipe not in RECIPES:
                continue
            # PyTorch's own loop where it was measured, the engine for the other recipes.
            ours = "engine" if name == "h100_sxm" else "halfstep"
            if row["way"] != ("pytorch" if name == "h200" and recipe in h200.FORMATS else ours):
                continue
            model = (row["model"], row["batch"], row.get("px", row.get("pixels")))
            last = bool(row.get("nhwc"))
            key = (name, *model, last, recipe)
            if key in found:
                continue
            if (model, last) not in forecasters:
                forecasters[model, last] = h200.forecaster(*model, nhwc=last)
            trace = forecasters[model, last].trace(find_recipe(recipe))
            seconds = row.get("ms", row.get("milliseconds")) / 1e3
            launches = sum(call.op.launches * call.count for call in trace.calls)
            host = row["host_ms"] / 1e3 if "host_ms" in row else launches * LAUNCH
            setting = f"{model[1]} x {model[2]} px, {'NHWC' if last else 'NCHW'}"
            found[key] = Step(name, model[0], setting, recipe, seconds, host, trace.calls)
    return [step for step in found.values() if step.host < HOST * step.seconds]


def errors(chosen: Sequence[tuple[Step, Workload]], fitted: Constants) -> NDArray[np.float64]:
    """Return the logarithms of predicted over measured times."""
    return np.array([np.log(step_time(w, fitted).seconds / s.seconds) for s, w in chosen])


def logs(data: Path, cache: Path) -> list[tuple[Step, Workload]]:
    """Return the published logs of Hopper."""
    found = []
    for each in measurements(data):
        if not each.machine or gpu(each.gpu).architecture != "hopper":
            continue
        calls = traced(each, cache).calls
        step = Step(each.gpu, each.model, "log", each.precision, each.seconds, 0.0, calls)
        found.append((step, workload(calls, gpu(each.gpu), tf32=each.precision != "fp32")))
    return found


def fit(
    chosen: Sequence[tuple[Step, Workload]],
    published: Sequence[tuple[Step, Workload]],
    start: Constants,
) -> Constants:
    """Return the constants that fit measured steps best, by robust regression with priors."""
    every = [*chosen, *published]
    weights = np.array([1.0] * len(chosen) + [LOGS] * len(published)) / NOISE
    names = tuple(SPREAD)
    start = replace(start, **GUESSES)
    prior = np.log([getattr(start, name) for name in names])
    spread = np.array([SPREAD[name] for name in names])

    def of(logs: NDArray[np.float64]) -> Constants:
        return replace(start, **dict(zip(names, map(float, np.exp(logs)), strict=True)))

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([errors(every, of(logs)) * weights, (logs - prior) / spread])

    near = least_squares(residuals, prior, max_nfev=60).x
    return of(least_squares(residuals, near, loss="soft_l1", max_nfev=60).x)


def summary(found: NDArray[np.float64]) -> dict[str, float]:
    """Return the size, the median and the ninth decile of relative errors."""
    relative = np.abs(np.expm1(found))
    return {
        "n": len(found),
        "median": float(np.median(relative)),
        "p90": float(np.quantile(relative, 0.9)),
    }


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of the table in the docs: predicted over measured times of each step."""
    names = ("step", "recipe", "measured", "published speeds", "current software", "part")
    cells = [
        (
            f"{row['model']}, {row['setting']}, {gpu(row['gpu']).name.split()[0]}",
            row["recipe"],
            f"{row['ms']:.1f} ms",
            f"{row['published']:.2f}",
            f"{row['current']:.2f}",
            row["part"],
        )
        for row in document["rows"]
    ]
    return h200.table(names, cells)


def main() -> None:
    """Fit and score the constants, and write both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where lambda_logs.csv is")
    parser.add_argument("--cache", type=Path, help="where traces of the logs are kept")
    parser.add_argument("--check", action="store_true", help="only score the shipped constants")
    given = parser.parse_args()
    if not given.check and not (given.data and given.cache):
        parser.error("a fit needs --data and --cache; write --check to score the constants")
    document = json.loads(cost.FILE.read_text())
    found = [(step, step.work) for step in steps()]
    published = Constants(**document["constants"])
    if given.check:
        fitted = cost.constants("hopper")
    else:
        of_logs = logs(given.data, given.cache)
        fitted = fit([pair for pair in found if pair[0].fitted], of_logs, published)
    # Without the constants in REPORTED, which no step here depends on.
    before, after = errors(found, published), errors(found, fitted)
    held_out = np.array([not step.fitted for step, _ in found])
    halves = np.array([step.recipe not in {"fp32", "tf32"} for step, _ in found])
    parts = {
        part: {
            name: {
                "published": summary(before[mask & kind]),
                "current": summary(after[mask & kind]),
            }
            for name, kind in (("half", halves), ("fp32 and tf32", ~halves))
        }
        for part, mask in (("fitted to", ~held_out), ("held out", held_out))
    }
    # A model that is new to the constants: each one in turn, predicted by a fit to the others.
    alone = after.copy()
    if not given.check:
        names = np.array([step.model for step, _ in found])
        for name in sorted(set(names)):
            kept = [pair for pair in found if pair[0].model != name]
            others = fit(kept, of_logs, published)
            alone[names == name] = errors(found, others)[names == name]
        parts["logs"] = {"all": {"current": summary(errors(of_logs, fitted))}}
    parts["each model left out"] = {
        "half": {"current": summary(alone[halves])},
        "fp32 and tf32": {"current": summary(alone[~halves])},
    }
    expected = np.array([interval.expected_error(work, fitted) for _, work in found])
    beside = np.sort(np.abs(alone) / expected)
    shares = {str(share): share / 100 * (1 + 1 / len(beside)) for share in interval.SHARES}
    base = document["intervals"]["step"]
    # Of few steps, so never narrower than intervals from hundreds of published ones.
    wider = {
        share: max(1.0, float(np.quantile(beside, min(1.0, of))) / base[share])
        for share, of in shares.items()
    }
    rows = [
        {
            "gpu": step.gpu, "model": step.model, "setting": step.setting, "recipe": step.recipe,
            "part": "fitted to" if step.fitted else "held out", "ms": step.seconds * 1e3,
            "published": float(np.exp(old)), "current": float(np.exp(new)),
            "model left out": float(np.exp(out)),
        }
        for (step, _), old, new, out in zip(found, before, after, alone, strict=True)
    ]  # fmt: skip
    for row in rows:
        print(row)
    print(json.dumps(parts, indent=1), wider)
    if given.check:
        return
    fitted = replace(fitted, **REPORTED)
    changed = {
        name: value
        for name, value in asdict(fitted).items()
        if name not in EVERYWHERE and value != getattr(published, name)
    }
    document["constants"] |= {name: getattr(fitted, name) for name in EVERYWHERE}
    document["current"] = {
        "alike": {"blackwell": "hopper"},
        "fitted": {"hopper": changed},
        "wider": {"hopper": wider},
    }
    cost.FILE.write_text(json.dumps(_rounded(document), indent=2) + "\n")
    result = {
        "software": "torch 2.11",
        "fitted to": sorted(" ".join(each) for each in FITTED),
        "errors": parts,
        "constants": {name: [getattr(published, name), getattr(fitted, name)] for name in SPREAD},
        "rows": rows,
    }
    RESULT.write_text(json.dumps(_rounded(result), indent=1) + "\n")
    docs_table.put(PAGE, "current", table(json.loads(RESULT.read_text())))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and abs(value) < 10 else value


if __name__ == "__main__":
    main()
