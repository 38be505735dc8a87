"""Writes the tables of causes on doctor's page, in both languages.

    python website/cause_tables.py

The rows are those of the rules. The names in Chinese are kept from the page, by code; a cause
without one gets its English name, and is printed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(<!-- causes -->\n)(.*?)(<!-- /causes -->)", re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


def table(page: str, names: dict[str, str]) -> str:
    """Return a page with the table of these causes.

    Args:
        page: The page, with a table.
        names: Name of each cause by its code, in order.
    """
    head = TABLE.search(page)[2].splitlines()[:2]
    rows = [f"| `{code}` | {name} |" for code, name in names.items()]
    text = "".join(f"{line}\n" for line in head + rows)
    return TABLE.sub(lambda found: found[1] + text + found[3], page)


def main() -> None:
    """Write both tables."""
    from halfstep.doctor.rules import rules

    names = {rule.code: rule.name for rule in rules()}
    english, chinese = DOCS / "doctor.md", DOCS / "doctor.zh.md"
    english.write_text(table(english.read_text(), names))
    page = chinese.read_text()
    known = dict(ROW.findall(TABLE.search(page)[2]))
    chinese.write_text(table(page, {code: known.get(code, name) for code, name in names.items()}))
    new = [code for code in names if code not in known]
    sys.stdout.writelines(f"{code} has no name in Chinese\n" for code in new)


if __name__ == "__main__":
    main()
