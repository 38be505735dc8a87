"""A comparison as text for documents: Markdown for pages, LaTeX for papers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.compare.output.columns import columns, name, title
from halfstep.compare.output.notes import notes
from halfstep.compare.rows import predicted as of_gpus
from halfstep.compare.rows.one_seed import conclusions
from halfstep.compare.rows.rows import rows_by_arm, rows_by_seed
from halfstep.compare.rows.verdict import verdicts
from halfstep.show.table import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.one_seed import Conclusions
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "◆": r"$\diamond$",
    "≈": r"$\approx$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def markdown(grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction] = ()) -> str:
    """Return the comparison as Markdown: a table by arm and, with several seeds, a table by seed.

    The predictions for each GPU are below, under a separate heading.
    """
    rows = rows_by_arm(grid, results)
    parts = [f"# {_escape(title(grid))}", _markdown_table(grid, results, rows)]
    concluded = conclusions(grid, rows, predicted)
    lines = (
        map(str, verdicts(grid, rows, predicted)) if concluded is None else _conclusions(concluded)
    )
    sentences = [f"- {_escape(line)}" for line in lines]
    if sentences:
        parts.append("\n".join(sentences))
    if len(grid.seeds) > 1:
        parts += ["## By seed", _markdown_table(grid, results, rows_by_seed(grid, results))]
    parts += [_escape(note) for note in notes(grid, results)]
    for prediction in predicted:
        parts += [
            f"## {_escape(prediction.title)}",
            _as_markdown(grid, _predicted(grid, prediction, rows)),
            *map(_escape, of_gpus.notes(prediction)),
        ]
    return "\n\n".join(parts) + "\n"


def _conclusions(concluded: Conclusions) -> list[str]:
    answer = (concluded.answer,) if concluded.answer else ()
    return [*concluded.facts, *map(str, concluded.verdicts), *answer, concluded.caveat]


def latex(grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction] = ()) -> str:
    r"""Return the comparison as LaTeX tables with notes below; they need \usepackage{booktabs}.

    The predictions for each GPU are in a separate table.
    """
    rows = rows_by_arm(grid, results)
    measured = _as_latex(grid, title(grid), list(_lines(grid, results, rows)), notes(grid, results))
    return "".join(
        [
            "% \\usepackage{booktabs}\n",
            measured,
            *(
                _as_latex(
                    grid,
                    prediction.title,
                    _predicted(grid, prediction, rows),
                    of_gpus.notes(prediction),
                )
                for prediction in predicted
            ),
        ]
    )


def _as_latex(
    grid: Grid, caption: str, lines: Sequence[Sequence[str]], sentences: Sequence[str]
) -> str:
    sides = "".join("l" if text else "r" for text in _is_text(grid, lines[0]))
    written = [" & ".join(map(_latex, line)) + r" \\" for line in lines]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(caption)}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            written[0],
            r"\midrule",
            *written[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_latex(note)}" for note in sentences),
            r"\end{table}",
            "",
        ]
    )


def _markdown_table(grid: Grid, results: Sequence[Result], rows: Sequence[Row]) -> str:
    return _as_markdown(grid, list(_lines(grid, results, rows)))


def _as_markdown(grid: Grid, lines: Sequence[Sequence[str]]) -> str:
    sides = [":--" if text else "--:" for text in _is_text(grid, lines[0])]
    written = [[_escape(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (written[0], sides, *written[1:]))


def _predicted(grid: Grid, prediction: Prediction, rows: Sequence[Row]) -> list[list[str]]:
    return [
        list(map(one_line, of_gpus.headers(prediction, grid))),
        *of_gpus.lines(prediction, rows),
    ]


def _lines(grid: Grid, results: Sequence[Result], rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the headers, then the cells of each row."""
    shown = columns(grid, results, everything=True)
    seed = ["seed"] if rows[0].seed is not None else []
    yield ["recipe", *grid.axes, *seed, *(column.title for column in shown), "status"]
    for row in rows:
        overrides = [override.partition("=")[2] for override in row.arm.point]
        cells = [" ".join(column.cell(row)) for column in shown]
        number = [] if row.seed is None else [str(row.seed)]
        yield [name(row), *overrides, *number, *cells, row.status]


def _is_text(grid: Grid, headers: Sequence[str]) -> list[bool]:
    return [
        header in ("recipe", "status", one_line(of_gpus.BOUND), *grid.axes) for header in headers
    ]


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
