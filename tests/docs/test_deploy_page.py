"""The programs of docs/deploy.md do what the page says."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halfstep.cli import app
from halfstep.cli.arguments import normalise

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
    for name in re.findall(r'"(\w+)"\]\)', PAGE) + re.findall(r'"(\w+)":', PAGE):
        assert f'"{name}"' in source
