"""Arguments that make any run of `digits` last a second, and an empty directory to run in."""

import shutil
from pathlib import Path

import pytest

from halfstep.cli import main

TINY = ["--device", "cpu", "--options", "epochs=1", "data.resolution=8", "batch_size=256"]
TINY += ["drop_last=false", "model.args={channels: [8, 8, 8, 8]}"]


@pytest.fixture
def tiny_arguments():
    return list(TINY)


@pytest.fixture
def halfstep(capsys, tmp_path, monkeypatch):
    """Run the command line in an empty directory; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """A run of `digits` that a second of training left."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "digits", *TINY, "--quiet", "--out", str(run)]) == 0
    return run


@pytest.fixture
def run(halfstep, trained_once):
    """That run, in the working directory, under its usual name."""
    return Path(shutil.copytree(trained_once, "runs/digits/fp32-seed0"))
