"""How far off predictions were: the README and the page say what the committed results say."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "advise_speed.json").read_text())
ROW = re.compile(r"^\| [^|]+ \| (\d+) \| ([\d.]+%) \| ([\d.]+%) \|$", re.MULTILINE)
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


def written(found: dict[str, float]) -> tuple[str, str, str]:
    return str(found["n"]), f"{found['median']:.1%}", f"{found['p90']:.1%}"


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_has_these_figures_in_their_order(page: str) -> None:
    assert ROW.findall((ROOT / page).read_text()) == [written(each) for each in SHOWN]


@pytest.mark.parametrize("page", ["advise-gpus.md", "advise-gpus.zh.md"])
def test_the_page_has_them_too(page: str) -> None:
    rows = ROW.findall((ROOT / "docs" / page).read_text())
    assert {written(each) for each in SHOWN} <= set(rows)
