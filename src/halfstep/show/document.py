"""Renders the template of any report as one HTML document, with scripts and styles inlined.

`base.html` and `parts.html` contain what all reports share. Each report has its own template, which
extends `base.html`, and its own scripts; they may be in another folder.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HERE = Path(__file__).parent
CHART = ("ticks.js", "overlaps.js", "chart.js")
"""The scripts that a report with charts needs before its own, after "state.js"."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table in the page.

    Attributes:
        text: The text of the cell.
        spread: A second text in small print: the spread between seeds or rounds.
        value: The key to sort by; None sorts last.
        label: The name of the column, for screens too narrow for a header.
        source: The files and the key that the number comes from; "" for text.
        link: The file that explains the cell; "" for none.
    """

    text: str
    spread: str = ""
    value: float | str | None = None
    label: str = ""
    source: str = ""
    link: str = ""


def document(
    template: Path, *, scripts: Sequence[Path | str], data: Mapping[str, Any], **values: Any
) -> str:
    """Return a report as one HTML document.

    Args:
        template: The report's own template, which extends "base.html".
        scripts: The scripts in the order of execution: files, or names of files in this folder.
        data: The data for the scripts: plain data without NaN.
        values: The values for the template: title, environment, notes, and whatever else it uses.
    """
    return (
        _templates(template.parent)
        .get_template(template.name)
        .render(
            **values,
            # Escaped, so that data cannot close the script element.
            data=Markup(_as_script(data)),  # noqa: S704  # escaped right here
            style=Markup(_read("style.css")),  # noqa: S704  # a file of this package
            script=Markup("\n".join(map(_read, scripts))),  # noqa: S704  # files of this package
        )
    )


@functools.cache
def _templates(folder: Path) -> jinja2.Environment:
    """Return the templates of a folder, compiled once: a comparison writes its report often."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def _read(name: Path | str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _as_script(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
