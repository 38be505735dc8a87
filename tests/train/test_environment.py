import platform

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.environment import describe, on_threads, pick_device


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto").type == "cuda"
    assert pick_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize(
    ("count", "asked", "allowed"),
    [(0, "cuda", "allowed: cpu; write --device cpu"), (1, "cuda:1", "allowed: cpu, cuda:0; write")],
)
def test_gpu_that_is_not_here_is_refused(monkeypatch, count, asked, allowed):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UserError, match=f"device is '{asked}'.*{allowed}"):
        pick_device(asked)


def test_description_has_the_versions_and_the_device():
    described = describe(torch.device("cpu"))
    assert described["python"] == platform.python_version()
    assert described["torch"] == torch.__version__.split("+")[0] or described["torch"]
    assert described["threads"] == torch.get_num_threads()
    assert described["device"] == "cpu"
    assert {"halfstep", "torchvision", "timm", "platform", "cpu", "device_name"} <= described.keys()


@pytest.mark.parametrize(
    ("variable", "asked", "expected"), [(None, 3, 3), ("2", 3, None), (None, None, None)]
)
def test_threads_are_the_configs_where_the_environment_does_not_say(
    monkeypatch, variable, asked, expected
):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    with on_threads(asked):
        assert torch.get_num_threads() == (expected or before)
        assert describe(torch.device("cpu"))["threads"] == (expected or before)
    assert torch.get_num_threads() == before
