"""Writes the errors of `halfstep advise` into its docs, from `results/advise_speed.json`.

python benchmarks/advise_docs.py
"""

# Tables in Chinese have Chinese punctuation.
# ruff: noqa: RUF001

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from docs_table import put

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).parent / "results" / "advise_speed.json"
PAGES = {"en": "advise-gpus-validation.md", "zh": "advise-gpus-validation.zh.md"}
HEADS = {
    "en": "| predicted | on which measurements | n | wanted | found | met |",
    "zh": "| 预测什么 | 用哪些测量数据检验 | n | 目标 | 结果 | 达到 |",
}
YES_NO = {"en": ("no", "yes"), "zh": ("否", "是")}
AT_MOST = {"en": "at most {0}% and {1}%", "zh": "不超过 {0}% 和 {1}%"}
BETWEEN = {"en": "{0}% to {1}%", "zh": "{0}% 到 {1}%"}
AT_LEAST = {"en": "at least {0}%", "zh": "不低于 {0}%"}
DATA = {
    "en": {
        "set aside": "12 families set aside, RTX 3090",
        "earlier": "the same families, an earlier cost model",
        "new": "an earlier cost model, only speeds that were new to it",
        "left out": "each of 31 families left out, RTX 3090",
        "gpu": "ResNet-50 and BERT, the GPU left out",
        "architecture": "ResNet-50 and BERT, all GPUs of the same architecture left out",
    },
    "zh": {
        "set aside": "测试集（12 个系列），RTX 3090",
        "earlier": "同一测试集，较早的代价模型",
        "new": "较早的代价模型，只取对它来说全新的数据",
        "left out": "按系列交叉验证（31 个系列），RTX 3090",
        "gpu": "ResNet-50 和 BERT，按 GPU 交叉验证",
        "architecture": "ResNet-50 和 BERT，按 GPU 架构交叉验证",
    },
}
WHAT = {
    "en": {
        "nchw": "time of a step, NCHW",
        "nhwc": "time of a step, NHWC",
        "naive nchw": "for comparison: `a x FLOPs + b x bytes`, NCHW",
        "naive nhwc": "for comparison: `a x FLOPs + b x bytes`, NHWC",
        "time": "time of a step",
        "ratio": "speed-up of half over fp32 or TF32",
        "twice": "for comparison: always 2x",
        "80": "share of true times in 80 % intervals",
        "90": "share of true times in 90 % intervals",
        "batch": "share of models whose largest batch in 24 GB is the published one",
    },
    "zh": {
        "nchw": "一步的时间，NCHW",
        "nhwc": "一步的时间，NHWC",
        "naive nchw": "对照：`a x FLOPs + b x bytes`，NCHW",
        "naive nhwc": "对照：`a x FLOPs + b x bytes`，NHWC",
        "time": "一步的时间",
        "ratio": "半精度相对 fp32 或 TF32 的加速比",
        "twice": "对照：一律猜 2 倍",
        "80": "真实时间在 80% 区间内的比例",
        "90": "真实时间在 90% 区间内的比例",
        "batch": "最大批大小（24 GB 显存）与公布值一致的模型的比例",
    },
}
FAMILIES = {
    "en": ("| family | models | NCHW | NHWC |", "all", "{:.2f} ({:.2f} to {:.2f})"),
    "zh": ("| 系列 | 模型数 | NCHW | NHWC |", "全部", "{:.2f}（{:.2f} 到 {:.2f}）"),
}


def targets(results: dict[str, Any], language: str) -> Iterator[str]:
    """Yield the lines of the table with the target and the measured error of each prediction."""
    left_out, test = results["refit"], results["test"]
    families, earlier = left_out["families left out"], results["test of an earlier cost model"]
    what, data = WHAT[language], DATA[language]

    def line(name: str, at: str, n: int, wanted: str, found: str, *, met: bool | None) -> str:
        said = "-" if met is None else YES_NO[language][met]
        return f"| {what[name]} | {data[at]} | {n} | {wanted} | {found} | {said} |"

    def error(name: str, at: str, found: dict[str, float], *most: float) -> str:
        both = found["median"], found["p90"]
        met = all(each <= bound / 100 for each, bound in zip(both, most, strict=False))
        wanted = AT_MOST[language].format(*most) if most else "-"
        shown = ", ".join(f"{each:.2%}" for each in both)
        return line(name, at, int(found["n"]), wanted, shown, met=met if most else None)

    def share(name: str, at: str, n: int, found: float, low: int, high: int = 100) -> str:
        wanted = (AT_LEAST if high == 100 else BETWEEN)[language].format(low, high)
        met = low / 100 <= found <= high / 100
        return line(name, at, n, wanted, f"{found:.2%}", met=met)

    yield HEADS[language]
    yield "| --- | --- | --- | --- | --- | --- |"
    yield error("nchw", "set aside", test["nchw"]["model"], 7, 20)
    yield error("nchw", "earlier", earlier["nchw"]["model"], 7, 20)
    yield error("nchw", "new", earlier["new"]["nchw"]["model"], 7, 20)
    yield error("naive nchw", "set aside", test["nchw"]["two constants"])
    yield error("nchw", "left out", families["nchw"], 7, 20)
    yield error("nhwc", "set aside", test["nhwc"]["model"], 8, 30)
    yield error("nhwc", "earlier", earlier["nhwc"]["model"], 8, 30)
    yield error("nhwc", "new", earlier["new"]["nhwc"]["model"], 8, 30)
    yield error("naive nhwc", "set aside", test["nhwc"]["two constants"])
    yield error("nhwc", "left out", families["nhwc"], 8, 30)
    yield error("time", "gpu", left_out["one GPU left out"], 8, 18)
    yield error("time", "architecture", left_out["one architecture left out"], 8, 18)
    yield error("ratio", "gpu", left_out["speed-up, one GPU left out"], 7, 13)
    yield error("twice", "gpu", left_out["speed-up, always 2x"])
    others = left_out["coverage by intervals from other families"]
    n = sum(int(families[layout]["n"]) for layout in families)
    for percent, low, high in (("80", 75, 85), ("90", 85, 95)):
        yield share(percent, "set aside", len(test["models"]), test["coverage"][percent], low, high)
        yield share(percent, "left out", n, others[percent], low, high)
    batch = results["largest batch"]["test"]
    yield share("batch", "set aside", batch["n"], batch["in bracket"], 90)


def families(results: dict[str, Any], language: str) -> Iterator[str]:
    """Yield the lines of the table with the predicted over the published times of each family."""
    head, every, form = FAMILIES[language]
    names: dict[str, set[tuple[str, int]]] = defaultdict(set)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in results["refit"]["models"]:
        ratio = row["predicted_ms"] / row["published_ms"]
        for group in (row["family"], every):
            names[group].add((row["model"], row["image_size"]))
            ratios[group, row["layout"]].append(ratio)
    yield head
    yield "| --- | --- | --- | --- |"
    for group in [*sorted(names.keys() - {every}), every]:
        shown = [
            form.format(median(of), min(of), max(of))
            for of in (ratios[group, layout] for layout in ("nchw", "nhwc"))
        ]
        yield f"| {group} | {len(names[group])} | {' | '.join(shown)} |"


TABLES = {"targets": targets, "families": families}


def main() -> None:
    """Write the tables of both pages."""
    results = json.loads(RESULTS.read_text())
    for language, page in PAGES.items():
        for mark, lines in TABLES.items():
            put(page, mark, list(lines(results, language)))


if __name__ == "__main__":
    main()
