"""The programs of docs/deploy.md do what the page says."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import halfstep
from halfstep.cli import app
from halfstep.cli.arguments import normalise
from halfstep.train.after.predict import Predictions

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
COMMANDS = re.findall(r"^halfstep (\w+) ?([^#\n]*)", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_every_flag_of_the_page_exists(command, arguments):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert "Usage" in shown
    for flag in (each for each in normalise(arguments.split()) if each.startswith("--")):
        assert flag in shown


def test_the_entries_that_the_page_names_are_written():
    source = (Path(__file__).parents[2] / "src/halfstep/train/after/export.py").read_text()
    page = PAGE.partition("## Exporting a model")[2]
    for name in re.findall(r'"(\w+)"\]\)', page) + re.findall(r'"(\w+)":', page):
        assert f'"{name}"' in source


def test_the_calls_and_results_in_python_exist():
    (program,) = re.findall(r"```python\n(import halfstep\n.*?)```", PAGE, re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func).removeprefix("halfstep."): call for call in calls}
    for name in ("evaluate", "predict"):
        names = [keyword.arg for keyword in called[name].keywords]
        function = getattr(halfstep, name)
        inspect.signature(function).bind(*called[name].args, **dict.fromkeys(names))
    for metric in re.findall(r'metrics\["(\w+)"\]', program):
        assert f"`{metric}`" in inspect.getdoc(halfstep.evaluate)
    for field in re.findall(r"found\.(\w+)", program):
        assert hasattr(Predictions, field)
