"""docs/migrate.md: its commands run, and one of its programs is what they make of the other."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from halfstep import apex
from halfstep.cli import app
from halfstep.migrate import migrate

PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"
BEFORE, AFTER = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_shows_what_the_command_does():
    assert migrate(BEFORE).after == AFTER
    assert migrate(BEFORE).notes == ()


COMMANDS = re.findall(r"^halfstep (migrate [^#\n]*)", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_does_what_it_says(command, tmp_path, monkeypatch):
    assert len(COMMANDS) == 5
    monkeypatch.chdir(tmp_path)
    path = Path("train.py" if "train.py" in command else "project/train.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(BEFORE)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    written = "--write" in command
    assert path.read_text() == (AFTER if written else BEFORE)
    if "--cuda-amp" in command:
        assert "does not use torch.cuda.amp" in done.output
    elif not written:
        scaler = "+scaler = torch.amp.GradScaler(" in done.stdout
        assert scaler == ("torch" in command)
        assert ("+engine = Engine(" in done.stdout) != scaler


def test_both_programs_give_the_same_losses():
    apex.install()
    try:
        before, after = {}, {}
        exec(BEFORE, before)
        exec(AFTER, after)
    finally:
        apex.uninstall()
    after["engine"].close()
    torch.testing.assert_close(
        torch.tensor(before["losses"]), torch.tensor(after["losses"]), rtol=1e-3, atol=1e-3
    )
    assert before["losses"][0] == pytest.approx(after["losses"][0], rel=1e-3)
