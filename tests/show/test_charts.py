"""The charts of reports, from the SVG that they draw: ticks that differ, lines that do not hide."""

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from halfstep import show
from halfstep.compare.output import report
from halfstep.show.document import CHART

SHOW, REPORT = Path(show.__file__).parent, Path(report.__file__).parent
DOM = Path(__file__).parent / "dom.js"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")
STRIPE = 10


def run(script, *files, data=None):
    """Run a script after the scripts of a chart, and return what its last expression is."""
    sources = [DOM, SHOW / "state.js", *(SHOW / name for name in CHART), *files]
    text = "\n".join(
        [*(file.read_text() for file in sources), f"console.log(JSON.stringify({script}))"]
    )
    given = json.dumps({"arms": [], **(data or {})})
    done = subprocess.run(
        [NODE, "-e", text, given], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def labels(low, high, count=4, *, whole=False):
    ticks = run(f"ticksOf({low}, {high}, {count}, {json.dumps(whole)})")
    return [tick["label"] for tick in ticks]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.99988, 1.0, ["0.99990", "0.99995", "1.00000"]),
        (99.31, 99.42, ["99.35", "99.40"]),
        (0, 100, ["0", "25", "50", "75", "100"]),
        (-0.3, 0.3, ["-0.2", "0.0", "0.2"]),
        (0, 0.00004, ["0", "1e-5", "2e-5", "3e-5", "4e-5"]),
        (1.2e8, 1.26e8, ["1.20e+8", "1.22e+8", "1.24e+8", "1.26e+8"]),
    ],
)
def test_all_labels_of_an_axis_have_the_decimals_of_its_step(low, high, expected):
    assert labels(low, high) == expected


def test_labels_differ_and_tell_the_place_of_their_tick_on_any_axis():
    script = """[...Array(2000).keys()].map((seed) => {
        const chance = (salt) => Math.abs(Math.sin(seed * 12.9898 + salt) * 43758.5453) % 1;
        const level = (chance(1) - 0.5) * 10 ** (14 * chance(2) - 7);
        const span = Math.abs(level) * 10 ** (6 * chance(3) - 5) + 1e-9;
        return ticksOf(level, level + span, 2 + seed % 5, seed % 4 === 0);
    })"""
    for ticks in run(script):
        written = [tick["label"] for tick in ticks]
        assert len(set(written)) == len(written), written
        steps = [after["value"] - before["value"] for before, after in pairwise(ticks)]
        for tick in ticks:
            assert abs(float(tick["label"]) - tick["value"]) <= 0.01 * max(steps, default=1e9)
        forms = {
            len(label.lstrip("-").partition(".")[2].partition("e")[0])
            for label in written
            if label != "0"
        }
        assert len(forms) <= 1, written


def test_an_axis_of_whole_numbers_has_no_others():
    assert labels(0, 10, 4, whole=True) == ["0", "5", "10"]
    assert labels(0, 2, 4, whole=True) == ["0", "1", "2"]
    assert [tick["label"] for tick in run("powersOf(3, 16, 4)")] == ["32", "1024", "32768"]
    assert [tick["label"] for tick in run("powersOf(-20, 10, 4)")] == [
        "2^-20",
        "2^-10",
        "2^0",
        "2^10",
    ]


def series(arm, y, **changes):
    x = list(range(1, len(y) + 1))
    return {
        "arm": arm,
        "label": f"r{arm}",
        "source": "s",
        "nonfinite": [],
        "x": x,
        "y": y,
    } | changes


def drawn(*lines, tag="path", **options):
    """Draw a chart; return the attributes of all its nodes with a tag."""
    given = json.dumps({"title": "t", "series": lines, **options})
    found = run(
        f"new Chart(host, {given}).plot.all({json.dumps(tag)}).map((node) => node.attributes)"
    )
    return [node for node in found if tag != "path" or node["class"] == "curve"]


def stripes(path):
    """Return the numbers of the stripes of the x axis in which a path is."""
    found = set()
    for part in filter(None, path["d"].split("M")):
        xs = [float(point.split()[0]) for point in part.split("L")]
        found |= set(range(int(xs[0] // STRIPE), int((xs[-1] - 1e-6) // STRIPE) + 1))
    return found


LEVEL = [0.5, 0.9, 0.95, 0.97]


def test_lines_that_coincide_alternate():
    paths = [stripes(path) for path in drawn(*(series(arm, LEVEL) for arm in range(3)))]
    everywhere = set.union(*paths)
    assert everywhere == set(range(min(everywhere), max(everywhere) + 1))
    for one in range(3):
        assert len(paths[one]) >= len(everywhere) // 3
        for other in range(one):
            assert not paths[one] & paths[other]


def test_lines_apart_are_whole():
    apart = [each - 0.2 for each in LEVEL]
    for path in drawn(series(0, LEVEL), series(1, apart)):
        assert path["d"].count("M") == 1
        assert re.sub(r"[ML ]\S+", "", path["d"]).strip() == ""


def test_lines_alternate_only_where_they_coincide():
    parted = [0.5, 0.9, 0.6, 0.3]
    one, other = (stripes(path) for path in drawn(series(0, LEVEL), series(1, parted)))
    half = (one | other) & set(range(16 + 34 // STRIPE))
    assert max(one & other) == max(one | other)
    assert {stripe for stripe in one & other if stripe < min(half) + len(half) // 2} == set()


def test_an_interrupted_line_takes_its_turns_where_it_is():
    lines = drawn(series(0, LEVEL), series(1, [0.5, 0.9, None, None]))
    whole, broken = (stripes(path) for path in lines)
    assert broken
    assert max(broken) < max(whole)
    assert whole >= set(range(max(broken) + 1, max(whole) + 1))


def test_points_at_one_place_are_rings():
    circles = drawn(*(series(arm, [0.5]) for arm in range(3)), series(3, [0.9]), tag="circle")
    assert [circle["r"] for circle in circles] == ["7", "5", "3", "3"]


def test_crosses_at_one_step_are_below_each_other():
    given = [series(arm, [0.5, None], nonfinite=[2]) for arm in range(2)]
    script = f"""new Chart(host, {{title: "t", series: {json.dumps(given)}}}).plot.all("path")
        .filter((node) => node.attributes.class === "cross").map((node) => node.attributes.d)"""
    one, other = run(script)
    assert one != other


def test_close_values_have_labels_that_differ_in_every_chart_of_a_comparison():
    cosines = [[0.99991, 0.99995, 0.99998], [0.99990, 0.99996, 1.0]]
    curves = [
        {
            name: {"x": [1, 2, 3], "y": y, "nonfinite": []}
            for name in ("gradient_cosine", "val_score")
        }
        for y in cosines
    ]
    data = {
        "score": {"name": "accuracy", "title": "accuracy, %", "scale": 100},
        "arms": [
            {"label": "fp32", "score": 0.99991, "seconds": 1000.01, "source": "s"},
            {"label": "fp16", "score": 0.99992, "seconds": 1000.04, "source": "s"},
        ],
        "cells": [
            {"curves": each, "arm": arm, "label": str(arm), "source": "s"}
            for arm, each in enumerate(curves)
        ],
    }
    script = """["charts", "tradeoff"].flatMap((id) => host[id].all("svg"))
        .map((svg) => svg.all("text").filter((text) => text.attributes.y)
            .map((text) => [text.attributes["text-anchor"], text.children[0]]))"""
    charts = run(script, REPORT / "charts.js", data=data)
    assert len(charts) == 3
    for texts in charts:
        for anchor in ("end", "middle"):
            written = [text for side, text in texts if side == anchor and text[0].isdigit()]
            assert len(written) >= 2
            assert len(set(written)) == len(written), written
