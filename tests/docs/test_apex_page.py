"""What docs/apex.md shows runs, and its table of levels is that of the code."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from halfstep import apex
from halfstep.apex import amp
from halfstep.apex.__main__ import main
from halfstep.apex.amp import casts
from halfstep.apex.amp.lists import functional_overrides
from halfstep.apex.amp.properties import OPT_LEVELS

PAGE = (Path(__file__).parents[2] / "docs" / "apex.md").read_text()
STEP, LISTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FORMATS = {"fp32": torch.float32, "fp16": torch.float16}
PROGRAM = """\
import argparse
import torch
{line}
parser = argparse.ArgumentParser()
parser.add_argument("--opt-level", default="O2")
args = parser.parse_args()
model = torch.nn.Linear(2, 1)
model = amp.initialize(model, opt_level=args.opt_level, verbosity=0)
print(model.weight.dtype, amp.__name__)
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    apex.uninstall()
    casts.end_casts()


@pytest.mark.parametrize("level", OPT_LEVELS)
def test_the_step_runs_at_every_level(level):
    model = nn.Linear(4, 1)
    names = {"amp": amp, "torch": torch, "model": model}
    names["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    before = model.weight.detach().clone()
    initialize, rest = STEP.split("\n", 1)
    exec(initialize.replace('"O2"', f'"{level}", verbosity=0, loss_scale=128'), names)
    names["loss"] = names["model"](torch.ones(2, 4)).float().sum()
    exec(rest, names)
    assert not torch.equal(model.weight.float(), before)


def test_the_lists_can_be_changed_as_shown(monkeypatch):
    monkeypatch.setattr(functional_overrides, "FP32_FUNCS", list(functional_overrides.FP32_FUNCS))
    exec(LISTS, {"amp": amp})
    assert "softmax" not in functional_overrides.FP32_FUNCS


def test_each_way_of_running_a_program_finds_the_same_amp(tmp_path, monkeypatch, capsys):
    ways = re.findall(r"\| (?:must|may)[^|]*\| `([^`]*)`", PAGE)
    assert ways == [
        "python -m halfstep.apex train.py --opt-level O2",
        "import halfstep.apex; halfstep.apex.install()",
        "from halfstep.apex import amp",
    ]
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    command, install, line = ways
    script.write_text(PROGRAM.format(line="from apex import amp"))
    assert main(command.split()[3:]) == 0
    apex.uninstall()
    monkeypatch.setattr(sys, "argv", ["train.py"])
    for first in (f"{install}; from apex import amp", line):
        exec(PROGRAM.format(line=first), {"__name__": "__main__"})
        apex.uninstall()
    assert capsys.readouterr().out == "torch.float16 halfstep.apex.amp\n" * 3


def test_the_levels_are_those_of_the_page():
    rows = re.findall(r"^\| (O\d) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [level for level, _ in rows] == list(OPT_LEVELS)
    for level, row in rows:
        weights, cast, batch_norm, masters, scale = row.split(" | ")
        options = OPT_LEVELS[level]
        assert FORMATS[weights] == (options["cast_model_type"] or torch.float32)
        assert ("torch's functions" in cast) == options["patch_torch_functions"]
        assert batch_norm.startswith("fp32") == bool(options["keep_batchnorm_fp32"])
        assert (masters == "fp32") == bool(options["master_weights"])
        assert scale == {1.0: "1"}.get(options["loss_scale"], options["loss_scale"])
