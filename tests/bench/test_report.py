"""What the page of a bench says, without a browser."""

import html.parser
import json
import re

import pytest

from halfstep.bench import directory
from halfstep.bench.dissection import Dissection
from halfstep.bench.report import page
from halfstep.bench.sweep import Quantity, Sweep


class Sources(html.parser.HTMLParser):
    """Collects what every number says that it is from."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attributes):
        self.found |= {value for name, value in attributes if name == "data-source"}


@pytest.fixture
def outcomes(subject, make_step):
    rates = Quantity("images /s", "more", "{:.0f}".format)
    seconds = Quantity("seconds", "less", "{:.1f}".format)
    steps = {"fp32": [[make_step()] * 3] * 2, "fp16": [[make_step(forward=0.002)] * 3] * 2}
    return {
        "loader": Sweep("data.workers", ("0", "2"), rates).outcome(subject, [[9, 8], [17, 18]]),
        "launch": Sweep("start", ("spawn", "torchrun"), seconds).outcome(subject, [[9], [10]]),
        "step": Dissection(steps, {name: [] for name in steps}, 2).outcome(subject),
    }


@pytest.mark.parametrize("bench", ["loader", "launch", "step"])
def test_every_number_names_a_key_of_the_results(outcomes, bench, tmp_path):
    directory.write(tmp_path, outcomes[bench])
    parser = Sources()
    parser.feed((tmp_path / "report.html").read_text())
    assert len(parser.found) > 5
    for source in parser.found:
        file, _, key = source.partition("#")
        value = json.loads((tmp_path / file).read_text())
        for part in key.split("."):
            value = value[part]
        assert isinstance(value, int | float | str), source


@pytest.mark.parametrize("bench", ["loader", "launch", "step"])
def test_the_page_needs_nothing_from_anywhere(outcomes, bench):
    text = page(outcomes[bench])
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert outcomes[bench].recommendation in text
    assert "Imaginary GPU" in text
    assert ('id="charts"' in text) == (bench != "launch")
    assert ('class="bars"' in text) == (bench != "loader")


def test_what_a_config_says_cannot_break_out_of_the_page(subject):
    sweep = Sweep("</script><img src=x>", ("1", "2"), Quantity("s", "less", str))
    text = page(sweep.outcome(subject, [[1.0], [2.0]]))
    assert "<img" not in text
    assert text.count("</script>") == 2
