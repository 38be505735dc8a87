"""`halfstep env` says of the machine what the libraries themselves say."""

import json

import torch
import typer
from typer.testing import CliRunner

from halfstep.cli import env


def invoke(*arguments):
    app = typer.Typer()
    env.register(app)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_versions_devices_and_backends_are_told(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    found = json.loads(invoke("--json"))
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert ("gloo" in found["backends"]) == torch.distributed.is_gloo_available()
    assert "NCCL_DEBUG=INFO" in found["variables"]
    assert "hidden" not in json.dumps(found)


def test_lines_are_for_reading(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    lines = dict(line.split(maxsplit=1) for line in invoke().splitlines())
    assert lines["torch"] == torch.__version__
    assert "NCCL_DEBUG=INFO" in lines["variables"]
    if not torch.cuda.is_available():
        assert lines["gpus"] == "none"
