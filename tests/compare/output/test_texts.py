import re
import shutil
import subprocess

import pytest

from compare.synthetic import fill, summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.output.texts import latex, markdown


@pytest.fixture
def mixed(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16"))
    full, half, brain = grid.cells
    results = [
        from_summary(full, summary()),
        from_summary(half, summary("nonfinite", first_nonfinite_step=1234)),
        Result(brain, "crashed", "exit code 1: RuntimeError: it [said] so"),
    ]
    return grid, results


def test_markdown_has_a_status_column_and_escapes_what_would_break_it(mixed):
    text = markdown(*mixed)
    assert "| recipe | best % | final % | vs fp32, points | train time |" in text
    assert "| non-finite at step | status |" in text
    assert r"RuntimeError: it \[said\] so" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_several_processes_are_in_the_title_and_explained(make_grid):
    alone, several = (make_grid(("fp32", "fp16"), processes=number) for number in (1, 2))
    said = "Each run trained in 2 processes, with batches of 2 times batch"
    assert "# digits on 2 processes of cpu, seed 0" in markdown(several, fill(several))
    for text in (markdown, latex):
        assert said in text(several, fill(several))
        assert "processes" not in text(alone, fill(alone))


def test_a_grid_has_a_column_for_every_axis(make_grid):
    grid = make_grid(("fp32", "fp16"), points=(("lr=0.1", "n=1"), ("lr=0.4", "n=1")))
    text = markdown(grid, fill(grid))
    assert "| recipe | lr | n | best % |" in text
    assert "| fp16 ◆ | 0.4 | 1 |" in text


def test_latex_is_a_booktabs_table_with_as_many_cells_in_every_line(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1), points=(("model_x=0.1",), ("model_x=0.4",)))
    text = latex(grid, fill(grid))
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    columns = len(re.search(r"begin\{tabular\}\{(.*)\}", text)[1])
    assert len(lines) == 5
    assert {line.count(" & ") for line in lines} == {columns - 1}
    assert r"model\_x" in text
    assert r"best \%" in text
    assert r"$\pm$" in text
    assert "±" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(make_grid, tmp_path):
    grid = make_grid(("fp32", "fp16", "o3"), (0, 1))
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "a.tex").write_text(head + latex(grid, fill(grid)) + r"\end{document}")
    subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, check=True)
