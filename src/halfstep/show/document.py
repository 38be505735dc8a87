"""One self-contained HTML document: a template of any report, with all that it needs inlined.

`base.html` and `parts.html` hold what reports share. A report has a template that extends the first
and scripts of its own; it may lie in another folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table in the page.

    Attributes:
        text: What it shows.
        spread: What it shows in small print: how far seeds, or rounds, are apart.
        value: What it is sorted by; None sorts last.
        label: Its column, for screens too narrow for a header.
        source: The files and key that the number is from; empty for text.
        link: The file that explains it; empty for none.
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
        template: The report's own template; it extends "base.html".
        scripts: What the browser runs, in order: files, or names of files of this folder.
        data: For the scripts; plain data without nan.
        values: For the template: title, environment, notes, and what it asks for besides.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return templates.get_template(template.name).render(
        **values,
        # The closing tag of a script must not come from data.
        data=Markup(_as_script(data)),  # noqa: S704  # escaped right here
        style=Markup(_read("style.css")),  # noqa: S704  # a file of this package
        script=Markup("\n".join(map(_read, scripts))),  # noqa: S704  # files of this package
    )


def _read(name: Path | str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _as_script(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
