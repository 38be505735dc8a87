"""The commands of docs/images-to-model.md run in order, and print what the page shows."""

import re
import shlex
import sys
from pathlib import Path

from halfstep.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "images-to-model.md").read_text()
SHOWN = re.findall(r"```console\n\$ halfstep ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)


SMALL = "epochs=1 data.resolution=16 data.workers=0"
"""What the test trains with instead of twelve epochs."""


def pattern(text: str) -> str:
    """Return a text without what depends on the machine and on the number of epochs."""
    text = re.sub(r"\d+([.,]\d+)*(e[+-]\d+)?|(?<=[(,/])(zero|one|two|three)\b", "X", text)
    return text.replace("steps", "step")


def test_the_commands_print_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "make_images.py", "exec"), {})
    assert [command.split()[0] for command, _ in SHOWN] == [
        *("init", "data", "train", "eval", "predict", "export")
    ]
    for command, output in SHOWN:
        arguments = shlex.split(command.replace("epochs=12", SMALL))
        monkeypatch.setattr(sys, "argv", ["halfstep", *arguments])
        main()  # ends with an exception if it fails
        printed = capsys.readouterr().out
        if arguments[0] == "init":
            assert printed == output
        else:
            count = len(output.splitlines())
            assert pattern("\n".join(printed.splitlines()[-count:])) == pattern(output.rstrip())
    assert Path("runs/photos/fp16-seed0/export/best.pt2").is_file()
