"""`halfstep env` says of the machine what the libraries themselves say."""

import json

import torch
import typer
from typer.testing import CliRunner

from halfstep.cli import env
from halfstep.train import environment


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
    assert found["threads"] == torch.get_num_threads()
    assert found["torch_version"] == torch.__version__
    assert found["is_cuda_available"] == str(torch.cuda.is_available())
    assert ("gloo" in found["backends"]) == torch.distributed.is_gloo_available()
    assert "NCCL_DEBUG=INFO" in found["variables"]
    assert "hidden" not in json.dumps(found)


def test_lines_are_for_reading(monkeypatch):
    told = {"torch": "2", "cpu_info": "one\ntwo", "gpus": [], "variables": ["A=1", "B=2"]}
    monkeypatch.setattr(environment, "report", lambda: told)
    assert invoke().splitlines() == [
        "torch      2",
        "cpu_info   one",
        "           two",
        "gpus       none",
        "variables  A=1, B=2",
    ]
