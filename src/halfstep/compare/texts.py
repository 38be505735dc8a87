"""A comparison as text for documents: Markdown for pages, LaTeX for papers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.compare.columns import columns, name, notes, title
from halfstep.compare.rows import rows_by_arm, rows_by_seed
from halfstep.compare.verdict import verdicts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.compare.grid import Grid
    from halfstep.compare.results import Result
    from halfstep.compare.rows import Row

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "◆": r"$\diamond$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def markdown(grid: Grid, results: Sequence[Result]) -> str:
    """Return the comparison as Markdown: by recipe, with several seeds also by seed."""
    rows = rows_by_arm(grid, results)
    parts = [f"# {_escape(title(grid))}", _markdown_table(grid, results, rows)]
    said = [f"- {_escape(str(verdict))}" for verdict in verdicts(grid, rows)]
    if said:
        parts.append("\n".join(said))
    if len(grid.seeds) > 1:
        parts += ["## By seed", _markdown_table(grid, results, rows_by_seed(grid, results))]
    parts += [_escape(note) for note in notes(grid, results)]
    return "\n\n".join(parts) + "\n"


def latex(grid: Grid, results: Sequence[Result]) -> str:
    r"""Return the comparison as a LaTeX table, notes below; it needs \usepackage{booktabs}."""
    rows = rows_by_arm(grid, results)
    lines = list(_lines(grid, results, rows))
    sides = "".join("l" if text else "r" for text in _is_text(grid, lines[0]))
    written = [" & ".join(map(_latex, line)) + r" \\" for line in lines]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(title(grid))}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            written[0],
            r"\midrule",
            *written[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_latex(note)}" for note in notes(grid, results)),
            r"\end{table}",
            "",
        ]
    )


def _markdown_table(grid: Grid, results: Sequence[Result], rows: Sequence[Row]) -> str:
    lines = list(_lines(grid, results, rows))
    sides = [":--" if text else "--:" for text in _is_text(grid, lines[0])]
    written = [[_escape(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (written[0], sides, *written[1:]))


def _lines(grid: Grid, results: Sequence[Result], rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the headers, then each row."""
    shown = columns(grid, results, everything=True)
    seed = ["seed"] if rows[0].seed is not None else []
    yield ["recipe", *grid.axes, *seed, *(column.title for column in shown), "status"]
    for row in rows:
        overrides = [override.partition("=")[2] for override in row.arm.point]
        cells = [" ".join(column.cell(row)) for column in shown]
        number = [] if row.seed is None else [str(row.seed)]
        yield [name(row), *overrides, *number, *cells, row.status]


def _is_text(grid: Grid, headers: Sequence[str]) -> list[bool]:
    return [header in ("recipe", "status", *grid.axes) for header in headers]


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
