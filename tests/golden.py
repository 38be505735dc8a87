"""Records what `doctor` and `advise` print, and finds what a refactoring has changed.

    python tests/golden.py record /tmp/before.json    # at the commit before the refactoring
    python tests/golden.py check /tmp/before.json     # as often as wanted after it

Recorded are the diagnosis of every program in `tests/doctor/programs`, and advise's answers for two
models with their predictions for four GPUs. Numbers depend on the machine and on the release of
torch, so a record serves the machine that made it (`bitwise.py` does the same for training).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from bitwise import differences, machine
from halfstep.cli import main as command_line
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.report.show import print_diagnosis

MODELS = """
import torch
from torch import nn

def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Flatten(),
        nn.Linear(32 * 144, 10),
    )

def transformer():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(2), nn.Linear(256, 64), nn.TransformerEncoderLayer(64, 4, batch_first=True),
        nn.Flatten(), nn.Linear(192, 10),
    )

def batches():
    draws = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 3, 16, 16, generator=draws), torch.randint(10, (16,), generator=draws))
        for _ in range(8)
    ]
"""
ANSWERS = {
    "convolutions": ("--gpu", "h100,t4"),
    "convolutions, all formats": ("--recipes", "bf16,fp16,o2,bf16-sr,half,fp8,fp8-delayed,act4"),
    "transformer": ("--gpu", "rtx3090,h200", "--optimizer", "adamw", "--lr", "1e-3"),
    "transformer, predictions": ("--gpu", "h100,t4", "--cost-only", "--batch-size", "256"),
}


def diagnoses() -> dict[str, str]:
    """Return what doctor prints for each program, by the program's code and function."""
    sys.path.insert(0, str(Path(__file__).parent))
    from doctor import programs

    printed = {}
    for each in pkgutil.walk_packages(programs.__path__, f"{programs.__name__}."):
        module = importlib.import_module(each.name)
        for name in [name for name in vars(module) if name.startswith(("broken", "mended"))]:
            torch.manual_seed(0)
            watch = Watch()
            with contextlib.suppress(Exception), watch:
                getattr(module, name)()
            text = io.StringIO()
            print_diagnosis(diagnose(watch.close()), text)
            printed[f"doctor/{each.name}/{name}"] = text.getvalue()
    return printed


def answers() -> dict[str, str]:
    """Return advise's answers as JSON, without times of this machine."""
    made = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        Path("models.py").write_text(MODELS)
        for name, options in ANSWERS.items():
            model = name.split(",", maxsplit=1)[0]
            arguments = [f"models.py:{model}", "--batches", "models.py:batches", *options]
            sys.argv = ["halfstep", "advise", *arguments, "--no-verify", "--json"]
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                command_line()
            for key, value in _leaves(json.loads(out.getvalue())):
                if not re.search(r"elapsed|took|budget|version", key):
                    made[f"advise/{name}{key}"] = repr(value)
    return made


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict | list):
        return [(key, value)]
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for name, each in pairs for leaf in _leaves(each, f"{key}/{name}")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
    os.environ["COLUMNS"] = "100"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    made = {"machine": machine(), "record": diagnoses() | answers()}
    if given.command == "record":
        given.file.write_text(json.dumps(made, indent=0))
        sys.stdout.write(f"{len(made['record'])} outputs in {given.file}\n")
        return 0
    kept = json.loads(given.file.read_text())
    if kept["machine"] != made["machine"]:
        sys.stderr.write(f"{given.file} was made on {kept['machine']}\n")
        return 2
    found = differences(kept["record"], made["record"], None)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{len(kept['record'])} outputs, {len(found) or 'no'} differences\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
