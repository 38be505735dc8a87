"""Runs the benchmarks one after the other, and writes the table of benchmarks/README.md.

    python benchmarks/campaign.py                        # all; hours on two quiet cores
    python benchmarks/campaign.py loader.py startup.py   # only these
    python benchmarks/campaign.py --table                # only the table, from committed results

A benchmark may fail, or refuse to replace a result because the machine is busy. The campaign then
continues with the next benchmark, and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
PAGE = "../benchmarks/README.md"


@dataclass(frozen=True)
class Benchmark:
    """A script and its row in the table.

    Attributes:
        script: The file of the script.
        measures: The quantity that it measures.
        peers: The tools or methods that it compares with, in the same run.
        headline: Returns the text of the column "finding", given the result.
        result: The name of its file in `results`; "" for the name of the script.
        needs: An argument that it requires; a script with such an argument only runs by name.
    """

    script: str
    measures: str
    peers: str
    headline: Callable[[dict[str, Any]], str]
    result: str = ""
    needs: str = ""

    @property
    def results(self) -> Path:
        """The path of the result file."""
        return HERE / "results" / (self.result or self.script.replace(".py", ".json"))


def _row(result: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """Return the only row of a result with these values."""
    (row,) = [
        each
        for each in result["rows"]
        if all(each[name.replace("_", " ")] == value for name, value in wanted.items())
    ]
    return row


def _ratio(row: dict[str, Any], low: str = "low", high: str = "high", at: str = "ratio") -> str:
    return f"{row[at]:.2f}x ({row[low]:.2f} to {row[high]:.2f})"


def _percent(row: dict[str, Any], at: str, low: str, high: str) -> str:
    return f"{row[at]:.1%} ({row[low]:.1%} to {row[high]:.1%})"


def _feed(result: dict[str, Any]) -> str:
    waits = "share of an epoch that waits"
    ours, theirs = (
        _percent(_row(result, loader=name, workers=0)[waits], "median", "low", "high")
        for name in ("halfstep, cache_images=ram", "torchvision")
    )
    return f"without workers, {ours} of an epoch is spent waiting for data; torchvision {theirs}"


def _loader(result: dict[str, Any]) -> str:
    row = _row(result, task="train", way="halfstep")
    ratio = _ratio(row, "ratio_low", "ratio_high")
    return f"{ratio} the speed of Pillow with torchvision's v2 transforms, in training"


def _step(result: dict[str, Any]) -> str:
    ours, theirs = (
        _ratio(_row(result, model="mlp", setting="fp32", variant=each))
        for each in ("engine", "Fabric")
    )
    return f"time relative to the raw loop on a tiny MLP in fp32: engine {ours}, Fabric {theirs}"


def _profile(result: dict[str, Any]) -> str:
    shares = {}
    for name, row in result["recipes"].items():
        taken = row["profiled_milliseconds"]
        convolutions = sum(taken[f"{way}: convolutions"] for way in ("forward", "backward"))
        shares[name] = f"{convolutions / sum(taken.values()):.0%} in {name}"
    return f"share of convolutions in a ResNet-18's step at 32 px: {', '.join(shares.values())}"


def _cpu_half(result: dict[str, Any]) -> str:
    ours, theirs = (
        f"{_row(result, of='resnet18, 32 px', variant=each)['ratio']:.2f}x"
        for each in ("fp16", "PyTorch fp16 autocast")
    )
    return f"fp16 takes {ours} the time of fp32 on a ResNet-18 at 32 px; PyTorch's fp16 {theirs}"


def _compiled(result: dict[str, Any]) -> str:
    row = _row(result, model="digits ResNet", recipe="fp32", variant="engine, compiled")
    return f"{_ratio(row)} the time of the eager step, for a digits ResNet in fp32"


def _doctor(result: dict[str, Any]) -> str:
    row = _row(result, model="resnet18", variant="halfstep watch")
    return f"{_ratio(row)} the time of an unwatched step"


def _doctor_programs(result: dict[str, Any]) -> str:
    return f"{result['median of 100 steps']:.2f}x the CPU time of programs of 100 steps (median)"


def _activations(result: dict[str, Any]) -> str:
    of = result["models"]["resnet18"]
    times = {
        name: of["time_over_exact"]["act2"][name] for name in ("median", "smallest", "largest")
    }
    return (
        f"ResNet-18 at 2 bits: {of['times_less_than_fp16']['act2']:.1f}x less memory than fp16, "
        f"{_ratio(times, 'smallest', 'largest', 'median')} the time on a CPU"
    )


def _optimizers(result: dict[str, Any]) -> str:
    of = result["optimizers"]["adamw, state: bf16"]
    return (
        f"AdamW's state in bf16: {of['bytes_a_parameter']:g} bytes per parameter, "
        f"{_ratio(of['step_over_torchs_own'], 'smallest', 'largest', 'median')} the time of "
        "torch's fused step"
    )


def _startup(result: dict[str, Any]) -> str:
    cell = result["seconds"]["a cell of a comparison, to its first step"]
    seconds = f"{cell['median']:.2f} s ({cell['low']:.2f} to {cell['high']:.2f})"
    return f"a run of a comparison starts in {seconds}"


def _demo(result: dict[str, Any]) -> str:
    found = [row["answer"] for each in result["sets"] for row in each["answers"].values()]
    settled = sum(answer != "not settled" for answer in found)
    took = f", each in {result['seconds']:.0f} s" if result["machine"]["quiet"] else ""
    return f"{settled} of {len(found)} rows with three sets of seeds are settled{took}"


def _checkpoints(result: dict[str, Any]) -> str:
    of = result["models"]["resnet18"]
    background, synchronous = (
        "{median:.0f} ms ({low:.0f} to {high:.0f})".format(
            **{name: 1e3 * each for name, each in of[way]["pause"].items()}
        )
        for way in ("background", "synchronous")
    )
    return (
        f"training of ResNet-18 pauses for {background}, with a synchronous write for {synchronous}"
    )


def _scaling(result: dict[str, Any]) -> str:
    (row,) = [e for e in result["speed"] if (e["scaling"], e["processes"]) == ("weak", 2)]
    return f"two processes on two cores: {row['ratio']:.2f}x the speed of one"


def _native(result: dict[str, Any]) -> str:
    of = result["convolutions"]
    return f"{sum(of['wrong'].values())} wrong results of PyTorch in {of['shapes']:,} shapes"


def _kept(result: dict[str, Any]) -> str:
    of = result["sets"]
    return (
        f"a batch of CIFAR-10 in {of['one array, halfstep']} ms; "
        f"timm {of['create_dataset, timm']} ms"
    )


def _exceptions(result: dict[str, Any]) -> str:
    of = result["summary"]
    return f"F1 score {of['f1']:.2f} over {of['trials_with_faults']} planted faults"


def _memory(result: dict[str, Any]) -> str:
    return f"error of at most {max(result['worst'].values()):.1%} for 20 models"


def _batch(result: dict[str, Any]) -> str:
    of = result["models"]["resnet50"]["batches"]
    compressed, exact = (of[way]["fits"] for way in ("act2", "exact"))
    return f"ResNet-50: {compressed} images at 2 bits, {exact} without compression"


def _rehearsal(result: dict[str, Any]) -> str:
    lowest = {each["how"]: f"{each['cosine_lowest']:.4f}" for each in result["curves"]}
    gpu = f"; on an {result['environment']['gpu']}: {lowest['gpu']}" if "gpu" in lowest else ""
    return f"lowest cosine similarity to the gradients of fp32: {lowest['rehearsed']}{gpu}"


def _fp8(result: dict[str, Any]) -> str:
    worst = max(each["before_rounding"] / each["of_fp8"] for each in result["distances"])
    same = [each["same_on_gpu"] for each in result["distances"] if each["same_on_gpu"] is not None]
    real = f"; the emulated results equal those of an {result['environment']['gpu']}"
    return f"difference from the emulated H100: at most {worst:.1%} of FP8's own rounding error" + (
        real if same and min(same) == 1 else ""
    )


def _four_bits(result: dict[str, Any]) -> str:
    losses = {name: row["difference"]["mean"] for name, row in result["transformer"].items()}
    slowest = max(row["ratio"] for row in result["step_cost"].values())
    said = ", ".join(f"{name} {losses[name]:+.4f}" for name in ("mxfp8", "mxfp4", "nvfp4"))
    return f"validation loss of a small transformer: {said}; a step takes {slowest:.2f}x at most"


def _ranking(result: dict[str, Any]) -> str:
    of = {name: each["tau"] for name, each in result["summary"].items()}
    return f"Kendall's tau {of['in view']:.2f}; on unseen tasks {of['unseen']:.2f}"


def _large(result: dict[str, Any]) -> str:
    of = result["totals"]
    return f"{of['cause_named']} of {of['faults']} causes named"


def _migrated(result: dict[str, Any]) -> str:
    return f"{result['programs']} programs from {result['repositories']} repositories were tried"


def _verified(result: dict[str, Any]) -> str:
    of = result["summary"]
    safe, unsafe = (
        f"{of[what].get('good', 0)} of {sum(of[what].values())}" for what in ("safe", "unsafe")
    )
    return f"passes {safe} safe recipes and {unsafe} unsafe ones"


def _speeds(result: dict[str, Any]) -> str:
    of = result["test"]["nchw"]["model"]
    return f"median error {of['median']:.1%} on {of['n']} models that the fit did not use"


_PEERS = "Fabric, Accelerate, Lightning, mmengine"
_WATCHERS = "anomaly mode, DebugMode, module hooks, sherlorch"


def _simulated(result: dict[str, Any]) -> str:
    wrong = max(row["wrong"] for row in result["wrong"])
    return f"at most {wrong:.1%} of the answers are wrong, also if one row is 5x as noisy"


EVERY = (
    Benchmark("step_overhead.py", "overhead of the engine and the trainer", _PEERS, _step),
    Benchmark("step_profile.py", "time of one step, by type of work", "", _profile),
    Benchmark("cpu_half.py", "half precision on a CPU", "PyTorch's kernels", _cpu_half),
    Benchmark("compile.py", "compiled models on a CPU", "PyTorch's own loop", _compiled),
    Benchmark("native_half.py", "errors of PyTorch's half-precision convolutions", "fp32", _native),
    Benchmark("feed.py", "share of training spent waiting for data", "torchvision, timm", _feed),
    Benchmark(
        "loader.py", "speed of decoding JPEG files", "Pillow with torchvision v2, OpenCV", _loader
    ),
    Benchmark("startup.py", "time that programs take to start", "importing torch", _startup),
    Benchmark("demo.py", "time and answers of the README's demo", "", _demo),
    Benchmark(
        "checkpoints.py",
        "time for which a run pauses for a checkpoint",
        "a synchronous write",
        _checkpoints,
    ),
    Benchmark("scaling.py", "speed of one to four processes on a CPU", "one process", _scaling),
    Benchmark("doctor_overhead.py", "overhead of doctor's watch", _WATCHERS, _doctor),
    Benchmark(
        "doctor_programs_cost.py", "CPU time of whole programs under doctor", "", _doctor_programs
    ),
    Benchmark(
        "activations.py", "memory and time of compressed activations",
        "activation checkpointing", _activations,
    ),
    Benchmark("batch_that_fits.py", "largest batch under a memory cap", "fp32", _batch),
    Benchmark(
        "optimizer_state.py", "optimizer state in few bits", "torch, bitsandbytes", _optimizers
    ),
    Benchmark(
        "kept.py",
        "halfstep's own cross-validation folds, image mixing and data sets",
        "scikit-learn, timm",
        _kept,
    ),
    Benchmark(
        "simulated_comparisons.py", "how often the answers of compare are wrong", "", _simulated
    ),
    Benchmark("rehearsal.py", "accuracy of a rehearsal", "PyTorch's kernels", _rehearsal),
    Benchmark("fp8_distance.py", "accuracy of the FP8 rehearsal", "an emulated H100", _fp8),
    Benchmark("four_bits.py", "accuracy and cost of rehearsed block formats", "bf16", _four_bits),
    Benchmark("advise_memory.py", "error of predicted memory", "a real step", _memory),
    Benchmark("advise_exceptions.py", "exceptions that advise finds", "", _exceptions),
    Benchmark("advise_ranking.py", "order in which advise ranks recipes", "training", _ranking),
    Benchmark(
        "advise_verified.py", "unsafe recipes that the verification notices", "training", _verified
    ),
    Benchmark(
        "fit_costs.py", "error of predicted times", "published measurements", _speeds,
        "advise_speed.json", "--cache",
    ),
    Benchmark(
        "doctor_large_programs.py", "faults in large programs", "", _large, needs="--timm"
    ),
    Benchmark(
        "migrate_programs.py", "migration of public programs", "", _migrated, needs="FOLDER"
    ),
)  # fmt: skip


def table() -> list[str]:
    """Return the table of README.md: the quantity that each benchmark measures, and its finding."""
    lines = [
        "| script | what it measures | compared with | minutes | result | finding |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in EVERY:
        if not each.results.exists():  # not measured yet
            continue
        result = json.loads(each.results.read_text())
        machine = result.get("machine", {})
        file = each.results.name
        lines.append(
            f"| [{each.script}]({each.script}) | {each.measures} | {each.peers or '-'} "
            f"| {machine.get('minutes', '-')} | [{file}](results/{file}){_quiet(machine)} "
            f"| {each.headline(result)} |"
        )
    return lines


def write_table() -> None:
    """Write the table into README.md."""
    docs_table.put(PAGE, "benchmarks", table())


def _quiet(machine: dict[str, Any]) -> str:
    """Return the mark of a result whose load of the machine is known; "" otherwise."""
    return (" (quiet)" if machine["quiet"] else " (busy)") if machine else ""


def main() -> int:
    """Run the benchmarks, write the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [each.script for each in EVERY]
    parser.add_argument("scripts", nargs="*", choices=[[], *names], metavar="SCRIPT")
    parser.add_argument("--table", action="store_true", help="run none")
    given = parser.parse_args()
    failed = []
    for each in EVERY:
        wanted = each.script in given.scripts if given.scripts else not each.needs
        if not given.table and wanted:
            done = subprocess.run([sys.executable, str(HERE / each.script)], check=False)
            failed += [each.script] * (done.returncode != 0)
    write_table()
    if failed:
        print(f"not measured: {', '.join(failed)}; see what they said")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
