"""Other accelerators than CUDA: what the trainer asks torch for, with stand-ins for the devices."""

import re
from pathlib import Path

import pytest
import torch

import halfstep
from halfstep.errors import UserError
from halfstep.kernels import accelerators
from halfstep.train.environment import pick_device

SOURCE = Path(halfstep.__file__).parent


@pytest.fixture(params=["mps", "xpu", "cuda"])
def kind(request, monkeypatch):
    """Let torch find two accelerators of a kind."""
    found = torch.device(request.param)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    return request.param


def test_auto_is_the_accelerator_that_is_here(kind):
    assert pick_device("auto") == torch.device(kind)
    assert pick_device(f"{kind}:1") == torch.device(kind, 1)
    assert accelerators.present() == [torch.device(kind, 0), torch.device(kind, 1)]


def test_an_accelerator_that_is_not_here_is_refused(kind):
    other = "xpu" if kind != "xpu" else "mps"
    for asked in (other, f"{kind}:2"):
        with pytest.raises(UserError, match=f"allowed: cpu, {kind}:0, {kind}:1; write"):
            pick_device(asked)


def test_memory_is_the_processs_where_torch_counts_none(monkeypatch):
    def not_counted(device):
        raise RuntimeError("not supported")

    assert not accelerators.counts_memory(torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", not_counted)
    assert not accelerators.counts_memory(torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: 0)
    assert accelerators.counts_memory(torch.device("xpu"))


def test_memory_is_given_back_only_where_there_is_an_accelerator(monkeypatch, kind):
    called = []
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: called.append(1))
    accelerators.empty_cache()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    accelerators.empty_cache()
    assert called == [1]


def test_a_random_state_of_another_kind_is_left_alone(monkeypatch):
    state = [torch.zeros(3)]

    class Module:
        get_rng_state = staticmethod(lambda: state[0])
        set_rng_state = staticmethod(lambda new: state.insert(0, new))

    monkeypatch.setattr(accelerators, "_generators", lambda: [(Module, ())])
    accelerators.set_random_states([torch.ones(4)])
    assert torch.equal(state[0], torch.zeros(3))
    accelerators.set_random_states([torch.ones(3)])
    assert torch.equal(state[0], torch.ones(3))


def test_mps_gets_no_fp64():
    assert accelerators.wide(torch.device("mps")) == torch.float32
    assert accelerators.wide(torch.device("cuda")) == torch.float64


def test_random_numbers_are_those_of_before_after_the_block():
    before = torch.get_rng_state()
    with accelerators.forked_rng(torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


class Current:
    """Stands for the current accelerator, as torch's `device_index` changes it."""

    def __init__(self, monkeypatch):
        self.index = 0
        monkeypatch.setattr(torch._C, "_accelerator_exchangeDevice", self.exchange)
        monkeypatch.setattr(torch._C, "_accelerator_maybeExchangeDevice", self.exchange)

    def exchange(self, index):
        self.index, before = index, self.index
        return before


def test_an_accelerator_is_the_current_one_in_the_block_alone(monkeypatch):
    current = Current(monkeypatch)
    with accelerators.in_use(torch.device("cuda:1")):
        assert current.index == 1
        with accelerators.in_use(torch.device("cpu")), accelerators.in_use(torch.device("cuda")):
            assert current.index == 1  # neither names another one
    assert current.index == 0
    with pytest.raises(KeyError), accelerators.in_use(torch.device("xpu:1")):
        raise KeyError
    assert current.index == 0


def test_an_event_is_that_of_a_stream_of_its_own_device(monkeypatch):
    made, recorded = [], []

    class Event:
        def __init__(self, device, *, enable_timing):
            made.append((device, enable_timing))

        def record(self, stream):
            recorded.append(stream)

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    accelerators.recorded_event(torch.device("cuda:1"), timed=True)
    assert made == [(torch.device("cuda:1"), True)]
    assert recorded == ["stream of cuda:1"]


COMMON = (
    "Event|current_device|current_stream|device_count|empty_cache|is_available|mem_get_info"
    "|max_memory_allocated|max_memory_reserved|reset_peak_memory_stats|set_device|synchronize"
)
CUDA_ALONE = ("bench/operators", "train/observers/energy.py")  # operators of CUDA; NVML


@pytest.mark.parametrize("part", ["train", "bench"])
def test_the_trainer_names_cuda_only_where_torch_has_nothing_in_common(part):
    for path in (SOURCE / part).rglob("*.py"):
        if not str(path.relative_to(SOURCE)).startswith(CUDA_ALONE):
            assert not re.findall(rf"torch\.cuda\.(?:{COMMON})\b", path.read_text()), path


def test_every_call_of_torch_that_takes_a_device_gets_one():
    """Without it, torch takes the current GPU, which is another one under `device="cuda:1"`."""
    calls = (
        "current_stream|max_memory_allocated|max_memory_reserved|reset_peak_memory_stats"
        "|synchronize|get_device_name|get_device_capability|get_memory_info|mem_get_info|Stream"
    )
    for path in SOURCE.rglob("*.py"):
        bare = re.findall(rf"torch\.(?:cuda|accelerator)\.(?:{calls})\(\)", path.read_text())
        assert not bare, path
        assert not re.findall(r"torch\.Event\((?:\)|device\.type)", path.read_text()), path
