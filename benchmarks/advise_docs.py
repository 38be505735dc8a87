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
PAGES = {"en": "advise-gpus.md", "zh": "advise-gpus.zh.md"}
ERRORS = {
    "en": (
        "| error, on data that the constants were not fitted to | n | median | 90 % are under |",
        "a family of models left out, RTX 3090, NCHW",
        "the same, NHWC",
        "families tested once, constants of the others, NCHW",
        "`a x FLOPs + b x bytes` on these",
        "families tested once, NHWC",
        "`a x FLOPs + b x bytes` on these",
        "ResNet-50 and BERT, their GPU left out",
        "the same, its architecture left out",
        "speed-up of half over fp32 or TF32, their GPU left out",
        "for comparison: always predicting 2x",
    ),
    "zh": (
        "| 预测的误差，对照未参与拟合的测量数据 | n | 误差中位数 | 90% 分位 |",
        "留一个模型系列作测试，RTX 3090，NCHW",
        "同上，NHWC",
        "最后只评一次分的模型系列，常数由其余系列拟合，NCHW",
        "基线：同样的模型，`a x FLOPs + b x bytes`",
        "最后只评一次分的模型系列，NHWC",
        "基线：同样的模型，`a x FLOPs + b x bytes`",
        "留一种 GPU 作测试，ResNet-50 和 BERT",
        "留一种架构作测试，同样的模型",
        "留一种 GPU 作测试，半精度相对 fp32 或 TF32 的加速比",
        "基线：一律猜 2 倍",
    ),
}
"""The head of the table of errors, and the name of each of its rows."""
COVER = {
    "en": (
        "On families left out, 80 % intervals contained {others_80} of the true values, and "
        "90 % intervals {others_90}. On the families tested once, the intervals of the first fit "
        "contained {once_80} and {once_90}. The largest batch on a card of 24 GB agreed with "
        "timm's for {bracket} of {n} models of families that no constant was fitted to."
    ),
    "zh": (
        "对没有参与构造区间的系列，80% 区间包含了 {others_80} 的误差，90% 区间包含了 {others_90}；"
        "对最后只评一次分的系列，第一次拟合得到的区间分别包含了 {once_80} 和 {once_90}。"
        "在 24 GB 的显卡上，没有用来拟合任何常数的系列共有 {n} 个模型，"
        "其中 {bracket} 的最大批大小与 timm 找到的相同。"
    ),
}
MODELS = {
    "en": ("| family | model | pixels | NCHW | NHWC |", "the median"),
    "zh": ("| 系列 | 模型 | 图像边长（像素） | NCHW | NHWC |", "中位数"),
}


def errors(results: dict[str, Any], language: str) -> Iterator[str]:
    """Yield the table of errors."""
    left_out, test = results["refit"], results["test"]
    families = left_out["families left out"]
    rows = (
        families["nchw"],
        families["nhwc"],
        test["nchw"]["model"],
        test["nchw"]["two constants"],
        test["nhwc"]["model"],
        test["nhwc"]["two constants"],
        left_out["one GPU left out"],
        left_out["one architecture left out"],
        left_out["speed-up, one GPU left out"],
        left_out["speed-up, always 2x"],
    )
    head, *names = ERRORS[language]
    yield head
    yield "| --- | --- | --- | --- |"
    for name, found in zip(names, rows, strict=True):
        yield f"| {name} | {found['n']} | {found['median']:.1%} | {found['p90']:.1%} |"


def cover(results: dict[str, Any], language: str) -> Iterator[str]:
    """Yield what intervals and batches came to."""
    found = results["refit"]["coverage by intervals from other families"]
    once = results["test"]["coverage"]
    batch = results["largest batch"]["test"]
    shares = {
        "others_80": found["80"],
        "others_90": found["90"],
        "once_80": once["80"],
        "once_90": once["90"],
        "bracket": batch["in bracket"],
    }
    shown = {name: f"{share:.0%}" for name, share in shares.items()}
    yield COVER[language].format_map({**shown, "n": batch["n"]})


def models(results: dict[str, Any], language: str) -> Iterator[str]:
    """Yield a table of every model, by family."""
    head, middle = MODELS[language]
    by_model: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for row in results["refit"]["models"]:
        ratio = row["predicted_ms"] / row["published_ms"]
        by_model[row["family"], row["model"], row["image_size"]][row["layout"]] = ratio
    yield head
    yield "| --- | --- | --- | --- | --- |"
    for (family, model, size), found in sorted(by_model.items()):
        shown = (f"{found[each]:.2f}" if each in found else "-" for each in ("nchw", "nhwc"))
        yield f"| {family} | {model} | {size} | {' | '.join(shown)} |"
    nchw, nhwc = (
        median(each[key] for each in by_model.values() if key in each) for key in ("nchw", "nhwc")
    )
    yield f"| | {middle} | | {nchw:.2f} | {nhwc:.2f} |"


TABLES = {"errors": errors, "cover": cover, "models": models}


def main() -> None:
    """Write the tables of both pages."""
    results = json.loads(RESULTS.read_text())
    for language, page in PAGES.items():
        for mark, lines in TABLES.items():
            put(page, mark, list(lines(results, language)))


if __name__ == "__main__":
    main()
