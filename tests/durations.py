"""Writes into CONTRIBUTING.md which tests belong to each folder of the package, and their seconds.

    make times    # after `make test`, which leaves the durations in build/tests.xml

Where tests of a folder take long, the row names the folders and files among them that take most.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
MARKED = re.compile(r"(<!-- times -->\n).*?(<!-- /times -->)", re.DOTALL)
RENAMED = {"apex": "apex_api"}
BESIDE = ("benchmarks", "docs", "examples", "website")
"""Folders beside the package, which have tests, too."""
LONG = 30
"""Seconds from which on a row names parts."""
PART = 5
"""Seconds from which on a part is named."""


def seconds(report: Path) -> Counter[str]:
    """Return the seconds of each file and folder of tests, from a report of pytest in JUnit XML."""
    taken: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        # The last names may be those of classes, which do not begin with a small letter.
        parts = [part for part in case.attrib["classname"].split(".") if part[:1].islower()]
        for end in range(1, len(parts) + 1):
            taken["/".join(parts[:end])] += float(case.attrib["time"])
    return taken


def rows() -> list[tuple[str, str]]:
    """Return each folder of the package, and each one beside it, with the path of its tests."""
    package = ROOT / "src" / "halfstep"
    names = sorted(path.name for path in package.iterdir() if path.is_dir() and path.name[0] != "_")
    inside = [(f"src/halfstep/{name}", _tests(RENAMED.get(name, name))) for name in names]
    return [*inside, *((name, _tests(name)) for name in BESIDE)]


def _tests(name: str) -> str:
    """Return the folder of tests with a name, or the file if there is no folder."""
    return f"tests/{name}" if (ROOT / "tests" / name).is_dir() else f"tests/test_{name}.py"


def table(taken: Counter[str]) -> list[str]:
    """Return the lines of the table."""
    lines = ["| folder | tests | seconds | of which |", "| --- | --- | --- | --- |"]
    for folder, tests in rows():
        place = tests.removesuffix(".py")
        lines.append(
            f"| `{folder}` | `{tests}` | {_written(taken[place])} | {_parts(taken, place)} |"
        )
    return lines


def _parts(taken: Counter[str], place: str) -> str:
    """Return the folders and files of a folder that take most, the longest first."""
    inner = {
        path.removeprefix(f"{place}/"): spent
        for path, spent in taken.most_common()
        if path.startswith(f"{place}/") and path.count("/") == place.count("/") + 1
    }
    return ", ".join(
        f"{name} {_written(spent)}"
        for name, spent in inner.items()
        if taken[place] >= LONG and spent >= PART
    )


def _written(spent: float) -> str:
    """Return seconds with two digits at most."""
    return f"{float(f'{spent:.2g}'):.0f}" if spent >= 1 else "under 1"


def main(report: str) -> None:
    """Write the table into the page."""
    lines = "".join(f"{line}\n" for line in table(seconds(Path(report))))
    PAGE.write_text(MARKED.sub(rf"\g<1>{lines}\g<2>", PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1])
