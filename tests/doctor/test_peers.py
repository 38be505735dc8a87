"""Trainers of other packages run under doctor unchanged: the same bits, and no alarm."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "peers"
NEEDS = {
    "timm_training": ("timm",),
    "torchvision_training": ("torchvision",),
    "lightning_training": ("lightning",),
    "fabric_training": ("lightning",),
    "accelerate_training": ("accelerate",),
    "transformers_training": ("transformers", "accelerate"),
}

NOTES = {
    # They divide the loss of a short last window by the length of a whole one.
    "accelerate_training": ["2 steps of AdamW used 1 backward pass"],
    "lightning_training": ["2 steps of AdamW used 2 backward passes"],
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


def numbers(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.removeprefix("-").startswith("0x")]


def test_every_program_is_run() -> None:
    assert {each.stem for each in PROGRAMS.glob("*_training.py")} == set(NEEDS)


@pytest.mark.parametrize("program", NEEDS)
def test_losses_are_the_same_bits_and_nothing_is_found(program: str, tmp_path: Path) -> None:
    for package in NEEDS[program]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = str(PROGRAMS / f"{program}.py")
    alone = run(script)
    assert alone.returncode == 0, alone.stderr
    watched = run("-m", "halfstep.doctor", "--report", str(tmp_path), script)
    assert watched.returncode == 0, watched.stderr
    assert len(numbers(alone.stdout)) >= 10
    assert numbers(watched.stdout) == numbers(alone.stdout)
    record = json.loads((tmp_path / "diagnosis.json").read_text())
    assert record["diagnosis"]["verdicts"] == []
    notes = [each.partition(",")[0] for each in record["diagnosis"]["notes"]]
    assert notes == NOTES.get(program, [])
    assert record["evidence"]["loop"]["iterations"] >= 2
