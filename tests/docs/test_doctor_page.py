"""docs/doctor.md lists the causes that there are, and its example is what doctor says."""

import re
from pathlib import Path

from halfstep.doctor.rules import rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text()


def test_the_causes_are_those_of_the_rules():
    listed = re.search(r"<!-- causes -->\n(.*?)<!-- /causes -->", PAGE, re.DOTALL)[1]
    expected = ["| code | cause |", "| --- | --- |"]
    expected += [f"| `{rule.code}` | {rule.name} |" for rule in rules()]
    assert listed.splitlines() == expected


def test_the_line_of_the_example_is_the_second_step():
    path, line = re.search(r"(examples/double_step\.py):(\d+)   optimizer\.step\(\)", PAGE).groups()
    assert (ROOT / path).read_text().splitlines()[int(line) - 1].strip() == "optimizer.step()"
