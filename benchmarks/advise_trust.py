"""Writes the tables on the reliability of advice into docs/advise-validation.md, from the results.

python benchmarks/advise_trust.py
"""

# Tables in Chinese have Chinese punctuation.
# ruff: noqa: RUF001

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_table import put

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).parent / "results"
PAGES = {"en": "advise-validation.md", "zh": "advise-validation.zh.md"}
HEADS = {
    "en": {
        "sums": (
            "quantity",
            "tasks used for the choice",
            "unseen tasks, first set",
            "unseen tasks, second set",
        ),
        "ranking": (
            "task",
            "pairs with an order",
            "pairs right",
            "tau",
            "tau, all pairs",
            "regret",
        ),
        "verified": (
            "recipes called safe",
            "as good as fp32",
            "worse than fp32",
            "not settled",
        ),
        "faults": (
            "planted fault",
            "trials",
            "exceptions found",
            "exceptions missed",
            "exceptions in other places",
        ),
        "memory": (
            "model",
            "worst error of saved bytes",
            "worst error of peak bytes",
        ),
    },
    "zh": {
        "sums": ("项目", "选定方法所用的任务", "新增任务，第一组", "新增任务，第二组"),
        "ranking": (
            "任务",
            "能分出好坏的方案对",
            "其中排序正确的",
            "tau",
            "全部方案对的 tau",
            "遗憾值",
        ),
        "verified": ("被判为安全的方案", "与 fp32 一样", "比 fp32 差", "没有定论"),
        "faults": ("植入的错误", "次数", "找到的例外", "漏掉的例外", "多余的例外"),
        "memory": ("模型", "保存的字节数（六种方案中最差）", "峰值（六种方案中最差）"),
    },
}
SUMS = {
    "en": (
        "tasks",
        "pairs of recipes with an order",
        "Kendall's tau over these pairs",
        "Kendall's tau over these pairs, mean over tasks",
        "Kendall's tau over these pairs, lowest of a task",
        "Kendall's tau over all pairs, mean over tasks",
        "Kendall's tau over all pairs, median over tasks",
        "recipes called safe",
        "recipes called safe that are unsafe",
        "tasks whose regret is within the seeds' noise",
        "the same, if the lowest loss is taken only over recipes that train as fp32 does",
    ),
    "zh": (
        "任务",
        "能分出好坏的方案对",
        "在这些方案对上的 Kendall tau",
        "同上：各任务平均",
        "同上：最低的任务",
        "在全部方案对上的 Kendall tau：各任务平均",
        "同上：中位数",
        "被判为安全的方案",
        "其中不安全的",
        "遗憾值在种子噪声之内的任务",
        "同上：只取“和 fp32 一致的方案”来比较",
    ),
}


def result(name: str) -> dict[str, Any]:
    """Return the committed results of one benchmark of advise."""
    return dict(json.loads((RESULTS / f"advise_{name}.json").read_text()))


def row(*cells: object) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def sums(language: str) -> Iterator[list[object]]:
    """Yield the figures of advise_ranking.py, for the known tasks and two sets of unseen tasks."""
    columns = []
    for file, name in (("ranking", "in view"), ("ranking", "unseen"), ("ranking_third", "unseen")):
        each = result(file)["summary"][name]
        columns.append(
            [
                each["tasks"],
                sum(each["pairs"].values()),
                *(f"{each[key]:.2f}" for key in ("tau", "tau_mean", "tau_lowest")),
                *(f"{each[f'tau_of_all_{key}']:.2f}" for key in ("mean", "median")),
                each["called_safe"],
                len(each["unsafe"]),
                f"{each['regret_within_noise']:.0%}",
                f"{each['regret_as_fp32_within_noise']:.0%}",
            ]
        )
    return map(list, zip(SUMS[language], *columns, strict=True))


def ranking(language: str) -> Iterator[list[object]]:
    """Yield a row for each task."""
    marks = {"en": (", unseen 1", ", unseen 2"), "zh": ("（新增 1）", "（新增 2）")}
    first, second = marks[language]
    for each in (*result("ranking")["tasks"], *result("ranking_third")["tasks"]):
        pairs = each["pairs"]
        ordered = sum(pairs.values())
        yield [
            each["task"]
            .replace(", unseen", first)
            .replace(", third", second)
            .replace("energies over", "energies divided by"),
            ordered,
            pairs["right"],
            "-" if each["tau"] is None else f"{each['tau']:.2f}",
            f"{each['tau_of_all']:.2f}",
            f"{each['regret']:.2f}",
        ]


def verified(language: str) -> Iterator[list[object]]:
    """Yield the verdicts of the verification on safe and on unsafe recipes."""
    names = {"en": ("safe", "unsafe"), "zh": ("安全的", "不安全的")}[language]
    for name, what in zip(names, ("safe", "unsafe"), strict=True):
        counts = result("verified")["summary"][what]
        yield [name, *(counts.get(settled, 0) for settled in ("good", "bad", "open"))]


def faults(language: str) -> Iterator[list[object]]:
    """Yield a row for each kind of fault, and one for healthy networks."""
    names = {"en": "no fault (healthy networks)", "zh": "无（健康的网络）"}
    found = result("exceptions")
    counts: dict[str, Counter[str]] = {}
    for trial in found["faulty"]:
        count = counts.setdefault(trial["fault"], Counter())
        count["trials"] += 1
        count.update({key: trial[key] for key in ("found", "missed", "too_many")})
    for name, count in counts.items():
        yield [name, *(count[key] for key in ("trials", "found", "missed", "too_many"))]
    healthy = found["healthy"]
    excepted = sum(len(trial["exceptions"]) for trial in healthy)
    yield [names[language], len(healthy), "-", "-", excepted]


def memory(language: str) -> Iterator[list[object]]:
    """Yield the worst errors of predicted memory, a row for each model."""
    del language
    worst: dict[str, dict[str, float]] = {}
    for each in result("memory")["rows"]:
        for what in ("saved", "peak"):
            off = each[f"{what}_traced"] / each[f"{what}_real"] - 1
            of_model = worst.setdefault(each["model"], {})
            of_model[what] = max(of_model.get(what, 0.0), off, key=abs)
    for name, found in worst.items():
        yield [name, *(f"{found[what]:+.2%}".replace("-0.00", "+0.00") for what in found)]


TABLES = {
    "sums": sums,
    "ranking": ranking,
    "verified": verified,
    "faults": faults,
    "memory": memory,
}


def table(mark: str, language: str) -> list[str]:
    """Return the lines of a table."""
    head = HEADS[language][mark]
    lines = [row(*cells) for cells in TABLES[mark](language)]
    return [row(*head), row(*("---" for _ in head)), *lines]


def main() -> None:
    """Write the tables of both pages."""
    for language, page in PAGES.items():
        for mark in TABLES:
            put(page, mark, table(mark, language))


if __name__ == "__main__":
    main()
