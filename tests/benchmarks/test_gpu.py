"""What benchmarks/gpu.sh runs on a GPU also runs on a CPU, at toy size, so that it does not rot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_runs_and_is_in_the_summary(tmp_path):
    variables = os.environ | {"TOY": "1", "PYTHON": sys.executable}
    command = ["bash", str(ROOT / "benchmarks" / "gpu.sh"), str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    said = {file.name: file.read_text()[-2000:] for file in tmp_path.glob("*.log")}
    assert done.returncode == 0, (done.stderr, said)
    summary = (tmp_path / "summary.md").read_text()
    assert done.stdout.strip() == summary.strip()
    for part in ("tests", "steps", "doctor", "fp8", "rehearsal", "parts", "feed"):
        assert f"| {part} |" in summary
    rows = json.loads((tmp_path / "steps.json").read_text())["rows"]
    ways = {(row["recipe"], row["way"]) for row in rows}
    assert ways == {
        *(("fp32", way) for way in ("PyTorch", "engine", "engine, compiled")),
        ("fp16+act2", "engine"),
    }
    assert "- resnet10t, fp16+act2, engine, compiled: activations are compressed" in summary
    for row in rows:
        if row["recipe"] == "fp32":
            assert row["predicted"]["predicted_seconds"]["value"] > 0
    assert "| resnet10t | fp32 | doctor, hold_back |" in summary
    assert "halfstep, cache_images=ram" in summary


@pytest.mark.slow
def test_a_part_that_fails_is_told_and_the_others_run(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *_summary*) exec {sys.executable} "$@";; esac\nexit 3\n'
    )
    python.chmod(0o755)
    variables = os.environ | {"TOY": "1", "PYTHON": str(python)}
    command = ["bash", str(ROOT / "benchmarks" / "gpu.sh"), str(tmp_path / "out")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("| 3 |") == 7
