"""How far off predictions were: the README and the page say what the committed results say."""

import importlib
import json
import re
from pathlib import Path

import pytest

from halfstep.advise.compared import predict
from halfstep.advise.predict.gpus import gpu
from halfstep.compare.plan.plan import plan
from halfstep.compare.rows.predicted import lines
from halfstep.compare.rows.rows import rows_by_arm

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "advise_speed.json").read_text())
ROW = re.compile(r"^\| (?!H200)[^|]+ \| (\d+) \| ([\d.]+%) \| ([\d.]+%) \|$", re.MULTILINE)
FOUND = re.compile(
    r"^\| [^|]+ \| [^|]+ \| (\d+) \| [^|]+ \| ([\d.]+%), ([\d.]+%) \| \S+ \|$", re.MULTILINE
)
PAGE = ROOT / "docs" / "advise-gpus-validation.md"
LEFT_OUT, TESTED = RESULTS["refit"], RESULTS["test"]
SHOWN = [
    LEFT_OUT["families left out"]["nchw"],
    LEFT_OUT["families left out"]["nhwc"],
    TESTED["nchw"]["model"],
    TESTED["nhwc"]["model"],
    LEFT_OUT["one GPU left out"],
    LEFT_OUT["speed-up, one GPU left out"],
    LEFT_OUT["speed-up, always 2x"],
]
CURRENT = json.loads((ROOT / "benchmarks" / "results" / "advise_current.json").read_text())
ON_HOPPER = [
    CURRENT["errors"]["each model left out"][kind]["current"] for kind in ("half", "fp32 and tf32")
]


def written(found: dict[str, float]) -> tuple[str, str, str]:
    return str(found["n"]), f"{found['median']:.1%}", f"{found['p90']:.1%}"


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_has_the_errors_on_current_gpus(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for kind in ON_HOPPER:
        n, median, _ = written(kind)
        assert re.search(rf"{re.escape(median)}[^.]*?n = {n}\b", text)


@pytest.mark.parametrize("page", ["advise-gpus.md", "advise-gpus.zh.md"])
def test_the_page_gives_the_errors_with_a_family_left_out(page: str) -> None:
    figures = re.findall(r"\d+\.\d%", (ROOT / "docs" / page).read_text())
    nchw, nhwc = (written(LEFT_OUT["families left out"][layout]) for layout in ("nchw", "nhwc"))
    assert figures[:4] == [nchw[1], nhwc[1], nchw[2], nhwc[2]]


@pytest.mark.parametrize("page", ["advise-gpus-validation.md", "advise-gpus-validation.zh.md"])
def test_the_page_has_them_too(page: str) -> None:
    rows = FOUND.findall((ROOT / "docs" / page).read_text())
    assert {(str(e["n"]), f"{e['median']:.2%}", f"{e['p90']:.2%}") for e in SHOWN} <= set(rows)


@pytest.mark.parametrize("page", ["advise-gpus-validation.md", "advise-gpus-validation.zh.md"])
def test_the_page_says_which_speeds_were_scored_when(page: str) -> None:
    new = RESULTS["test of an earlier cost model"]["new"]
    once = sum(new[layout]["model"]["n"] for layout in ("nchw", "nhwc"))
    scored = len(TESTED["models"])
    numbers = {TESTED["published"], TESTED["duplicates"], scored, scored - once, once}
    (paragraph,) = [
        each
        for each in (ROOT / "docs" / page).read_text().split("\n\n")
        if str(TESTED["published"]) in each
    ]
    assert numbers <= {int(each) for each in re.findall(r"\d+", paragraph)}
    assert not TESTED["not traced"]  # the page says that none was left out


def test_the_targets_that_the_page_calls_missed_are_those_that_are() -> None:
    text = PAGE.read_text().split("<!-- targets -->")[1]
    missed = re.findall(r"^\| ([^|]+) \| ([^|]+) \|.* no \|$", text, re.MULTILINE)
    assert missed == [
        ("time of a step, NHWC", "the same families, an earlier cost model"),
        ("time of a step, NHWC", "an earlier cost model, only speeds that were new to it"),
        ("share of true times in 80 % intervals", "each of 31 families left out, RTX 3090"),
    ]


def test_the_sample_under_a_comparison_is_what_is_predicted(tmp_path: Path) -> None:
    asked = plan("digits", recipes="fp16", seeds="1", device="cpu", out=tmp_path)
    (found,) = predict(asked, [gpu("h100")])
    reference, line = lines(found, rows_by_arm(asked.grid, []))
    recipe, _, *figures, bound = line
    for page in ("compare.md", "compare.zh.md"):
        sample = (ROOT / "docs" / page).read_text().partition(found.title)[2]
        (row,) = re.findall(rf"^ +{recipe} +[\d.]+ (.+)\n +(.+)$", sample, re.MULTILINE)
        assert " ".join(" ".join(row).split()) == " ".join([*figures, bound.replace(",", "")])
        assert " ".join(reference) in re.sub(" +", " ", sample)


@pytest.mark.parametrize("page", ["advise-gpus-validation.md", "advise-gpus-validation.zh.md"])
def test_the_page_has_the_speeds_on_gpus_that_no_fit_knows(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("newest_gpus")
    found = json.loads(script.RESULT.read_text())
    lines = script.table(found)
    if page.endswith(".zh.md"):
        lines = [importlib.import_module("docs_terms").chinese(script.PAGE, line) for line in lines]
    text = (ROOT / "docs" / page).read_text()
    assert text.split("<!-- newest -->\n")[1].split("<!-- /newest -->")[0].splitlines() == lines
    rows = found["rows"]
    published = {(each.gpu, each.model, each.precision) for each in script.measurements()}
    assert {(row["gpu"], row["model"], row["precision"]) for row in rows} == published
    inside = [row["inside"] for row in rows]
    assert (sum(inside), len(inside)) == (17, 18)
    new = [row["inside"] for row in rows if row["gpu"] in {"gh200", "b200"}]
    assert (sum(new), len(new)) == (11, 12)
    medians = [f"{found['errors'][on]['median']:.0%}" for on in ("b200", "gh200", "h200")]
    paragraph = text.split("<!-- newest -->")[0].split("\n\n")[-2]
    assert [f"{each}%" for each in re.findall(r"(\d+) ?%", paragraph)] == medians
    # 80 % intervals of GPUs without data are at least as wide as 80 % of what is known there.
    assert sum(new) / len(new) >= found["percent"] / 100
