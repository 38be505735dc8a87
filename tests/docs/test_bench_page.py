"""What docs/bench.md shows is what the commands take and say."""

import re
from pathlib import Path

import pytest
import typer

from halfstep.bench.dissection import NAMES, WHOLE
from halfstep.bench.spread import LEAST_GAIN
from halfstep.cli import app
from halfstep.cli.arguments import normalise

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
COMMANDS = re.findall(r"^(?:\$ )?halfstep (bench .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one(command):
    group = typer.main.get_command(app).commands["bench"]
    name, *arguments = normalise(command.split())[1:]
    group.commands[name].make_context(name, arguments)


def test_the_parts_of_a_step_are_those_that_are_printed():
    rows = re.findall(r"^\| ([a-z, ]+) \| ", PAGE.split("## The parts")[1], re.MULTILINE)
    assert rows == ["part", *(name for part, name in NAMES.items() if part != WHOLE)]


def test_the_gain_that_counts_is_the_one_that_is_told():
    assert f"{100 * (LEAST_GAIN - 1):.0f} % or more" in re.sub(r"\s+", " ", PAGE)
