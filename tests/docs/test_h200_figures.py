"""Measurements on an H200: the README and the docs say what the committed result says."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "gpu" / "h200.json").read_text())
UNIT = r"\s*(?:ms|GiB|%|times|倍)"
FIGURE = re.compile(rf"(?<![\w.])(\d[\d.]*)(?={UNIT}|\s+(?:to|到)\s+[\d.]+{UNIT})")
RESNET = {"section": "step", "model": "resnet50", "batch": 256, "nhwc": True}
VIT = {"model": "vit_base_patch16_224", "batch": 128, "nhwc": False}
SMALL = {"section": "step", "model": "resnet18", "batch": 32, "px": 64}


def rows(**of: Any) -> list[dict[str, Any]]:
    """Return the rows with these values."""
    return [row for row in RESULT["rows"] if of.items() <= row.items()]


def step(recipe: str, way: str = "halfstep", at: str = "ms", **of: Any) -> float:
    """Return a figure of a step: of ResNet-50 in batches of 256, the first of repetitions."""
    return float(rows(**{**RESNET, "recipe": recipe, "way": way, **of})[0][at])


def other(section: str, way: str) -> float:
    """Return the milliseconds of a row that is not a step of a model of timm."""
    (row,) = rows(section=section, way=way)
    return float(row["ms"])


def mid(recipe: str) -> float:
    return step(recipe, at="ms_median")


def gib(recipe: str) -> str:
    return f"{step(recipe, at='peak_MiB') / 1024:.1f}"


def listed(figures: list[float], places: int = 1) -> set[str]:
    return {f"{each:.{places}f}" for each in figures}


def text(page: str) -> list[str]:
    """Return the sections about an H200, and from other sections the paragraphs that name one."""
    plain = re.sub(r"^\|.*$|^```[\s\S]*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE)
    parts = []
    for section in re.split(r"\n(?=#)", plain):
        title, _, body = section.partition("\n")
        blocks = [section] if "H200" in title else re.split(r"\n\n|\n(?=- )", body)
        parts += [block for block in blocks if "H200" in block]
    return parts


def figures(*parts: str) -> set[str]:
    return {figure for part in parts for figure in FIGURE.findall(part)}


def in_both(page: str) -> list[tuple[str, list[str]]]:
    """Return what a page and its translation say about an H200."""
    return [(name, text(name)) for name in (page, page.replace(".md", ".zh.md"))]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the script that writes the tables."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("h200")


def test_the_tables_are_those_of_the_result(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = {(ROOT / "docs" / page).resolve() for page, _ in script.tables(RESULT)}
    pages |= {page.with_suffix(".zh.md") for page in pages}
    for page in pages:
        copy = tmp_path / page.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(page.read_text())
    monkeypatch.setattr(script.docs_table, "DOCS", tmp_path / "docs")
    for (page, mark), lines in script.tables(RESULT).items():
        script.docs_table.put(page, mark, lines)
    for page in pages:
        assert page.read_text() == (tmp_path / page.relative_to(ROOT)).read_text()


def test_the_result_says_what_was_measured_and_how() -> None:
    assert {"device", "host", "date", "torch", "torchao", "halfstep", "how", "units"} <= {*RESULT}
    for row in RESULT["rows"]:
        assert ("predicted" in row) == (
            row["section"] == "step"
            and row["way"] in {"pytorch", "halfstep"}
            and not re.search(r"act|fp8", row["recipe"])
        )


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_first_screen_of_the_readme_says_what_a_gpu_gains(page: str) -> None:
    screen = (ROOT / page).read_text().partition("<!-- demo -->")[0].splitlines()[:25]
    cells = [re.findall(r"(?<=\| )[\d,.]+(?= \|)", line) for line in screen]
    formats = ("fp32", "tf32", "bf16", "fp16")
    ways = [
        [f"{256e3 / step(recipe, way):,.0f}" for recipe in formats]
        for way in ("pytorch", "halfstep")
    ]
    assert [*filter(None, cells)] == [*ways, [gib(recipe) for recipe in formats]]
    for recipe in formats:  # one peak stands for both ways
        assert f"{step(recipe, 'pytorch', 'peak_MiB') / 1024:.1f}" == gib(recipe)
    faster = [step(recipe) / step("fp16") for recipe in ("fp32", "tf32")]
    (said,) = [line for line in screen if "H200" in line and not line.startswith("|")]
    assert figures(said) == listed(faster)


def test_recipes_say_what_they_cost() -> None:
    said = {
        *listed([mid("fp16"), mid("fp16+act4")], 0),
        *listed([other("fp8", f"halfstep {recipe}") for recipe in ("fp8", "bf16")], 0),
        *listed([other("fp8", f"torch{way} compile") for way in (" bf16", "ao tensorwise")], 0),
        *listed([step(recipe) for recipe in ("bf16-sr", "bf16-true", "bf16-kahan")]),
        *listed([other("optim", f"halfstep {recipe}") for recipe in ("bf16-sr", "bf16-kahan")]),
        *listed([other("optim", f"torch{way}") for way in (" bf16 fused", "ao bf16 sr")]),
        *listed([step(recipe) for recipe in ("bf16", "fp16", "o2", "o3")]),
        *listed([step(recipe, "halfstep+compile") for recipe in ("bf16", "fp16")]),
    }
    for page, parts in in_both("docs/recipes.md"):
        assert figures(*parts) == said, page


def test_compressed_activations_say_what_they_cost() -> None:
    both = {
        *listed([mid(recipe) for recipe in ("fp16", "fp16+act4", "fp16+act2")], 0),
        *(gib(recipe) for recipe in ("fp16", "fp16+act4", "fp16+act2")),
    }
    longer = listed([mid("fp16+act4") / mid("fp16")])
    means = listed([step(recipe) for recipe in ("fp16+act4", "fp16+act2")], 0)
    of_8 = listed([mid(recipe) for recipe in ("bf16+act8", "bf16")], 0)
    for page, parts in in_both("docs/experiments/2-bit-activations.md"):
        assert figures(*parts) == both | longer, page
    for page, parts in in_both("docs/activations.md"):
        assert figures(*parts) == both | means | of_8, page


def test_the_page_of_performance_says_what_the_table_shows() -> None:
    pairs = [
        step(recipe, **of) / step(recipe, "pytorch", **of)
        for of, recipes in (
            (RESNET, ("fp32", "tf32", "bf16", "fp16")),
            (VIT, ("tf32", "bf16", "fp16")),
        )
        for recipe in recipes
    ]
    small = [row["ms"] for row in rows(**SMALL, recipe="fp16")]
    said = {
        f"{100 * max(abs(pair - 1) for pair in pairs):.1f}",
        *listed(small),
        f"{step('bf16') / step('fp16'):.2f}",
        f"{mid('fp16+act4') / mid('fp16'):.1f}",
    }
    for page, parts in in_both("docs/performance.md"):
        assert figures(*parts) == said, page
        (line,) = [each for each in parts[0].split("\n- ") if "sync_debug" in each]
        quiet = {row["recipe"] for row in rows(section="host", sync="none")}
        assert {*re.findall(r"[a-z0-9+-]+", line)} >= quiet
        assert len(quiet) == 9


def test_errors_of_predictions(script: Any) -> None:
    compared = script.compared(RESULT["rows"])
    assert len(compared) == 27
    groups = [script.errors(RESULT["rows"], formats) for formats in script.GROUPS]
    medians = {f"{100 * np.median(group):.0f}" for group in groups}
    close = [row for row in compared if abs(script.of_bytes(row) - 1) <= 0.04]
    far = {f"{100 * (1 - script.of_bytes(row)):.0f}" for row in compared if row not in close}
    assert len(close) == 24
    slower = {
        name: sorted(1 / script.of_time(row) for row in compared if wanted(row))
        for name, wanted in {
            "fp32": lambda row: row["recipe"] == "fp32",
            "tf32": lambda row: row["recipe"] == "tf32" and not row["nhwc"],
            "bf16": lambda row: row["recipe"] == "bf16" and row["batch"] >= 64,
            "nchw": lambda row: not row["nhwc"],
            "small": lambda row: row["batch"] == 32,
        }.items()
    }
    assert slower["nchw"][0] > 1
    ends = {name: {f"{each[0]:.1f}", f"{each[-1]:.1f}"} for name, each in slower.items()}
    small = {f"{end:.0f}" for end in (slower["small"][0], slower["small"][-1])}
    for page, parts in in_both("docs/advise-gpus-validation.md"):
        assert figures(*parts) == medians | far | ends["fp32"] | small | {"4", "6"}, page
    for page in ("docs/advise-gpus.md", "docs/advise-gpus.zh.md"):
        assert figures(*text(page)) >= medians | {"4"}
    for page in ("README.md", "README.zh.md"):
        assert any("24" in part and "27" in part and "4" in figures(part) for part in text(page))
