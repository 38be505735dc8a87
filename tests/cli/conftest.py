"""Arguments that make any run of `digits` last a second, and an empty directory to run in."""

import pytest

from halfstep.cli import main

TINY = ["--device", "cpu", "--options", "epochs=1", "data.resolution=8", "batch_size=256"]
TINY += ["model.args={channels: [8, 8, 8, 8]}"]


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
