"""The programs of docs/fit.md run, and its table names arguments that there are."""

import inspect
import re
from pathlib import Path

import halfstep

PAGE = (Path(__file__).parents[2] / "docs" / "fit.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_programs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in PROGRAMS:
        shorter = program.replace("epochs=4", "epochs=1").replace("seeds=3", "seeds=1")
        exec(compile(shorter, "fit.md", "exec"), names)
    loss, mae = names["fitted"].best["loss"], names["fitted"].best["mae"]
    printed = capsys.readouterr().out
    assert f"{loss} {mae}" in printed
    assert [each.label for each in names["compared"].verdicts] == ["fp16", "bf16"]
    assert Path("runs/compared/report.html").is_file()


def test_the_table_names_arguments_of_fit():
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE.partition("## Larger programs")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)", row)]
    assert len(named) > 8
    assert set(named) <= set(inspect.signature(halfstep.fit).parameters)


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 80
