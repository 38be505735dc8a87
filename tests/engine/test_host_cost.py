"""What a step costs the host, counted: calls of Python functions and of torch's operators.

The tensors are fake ones on a CPU: autograd runs on fake CUDA tensors only with a driver. Operators
are intercepted before they choose a device, so they are those of a GPU.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import timm
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

import halfstep
from halfstep import Engine
from halfstep.engine.closing.host_copy import HostCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = str(Path(halfstep.__file__).parent)
MOST_CALLS = 250
"""Calls of halfstep's functions in a step. They were 468 while the fast path was a second copy."""
COPY_TO_HOST = 3
"""Operators of `HostCopy` on a GPU, which numbers on a CPU do not need: stack, empty and copy_."""
MOST_OPERATORS = 1.05
"""Operators of the engine's step, relative to PyTorch's own loop."""


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def operators(step: Callable[[], None]) -> int:
    with Counting() as counting:
        step()
    return counting.count


def calls(step: Callable[[], None]) -> int:
    count = 0

    def profile(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(SOURCE)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(before)
    return count


def parts():
    model = timm.create_model("resnet18", num_classes=10)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    optimizer._step_supports_amp_scaling = True  # as on a GPU
    return model, optimizer, torch.randn(4, 3, 64, 64), torch.zeros(4, dtype=torch.int64)


@contextmanager
def pytorchs_step() -> Iterator[Callable[[], None]]:
    model, optimizer, images, labels = parts()
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        scaler.step(optimizer)
        scaler.update()

    with halfstep.cpu_half():  # autocast's lists of CUDA
        yield step


@contextmanager
def engines_step() -> Iterator[Callable[[], None]]:
    model, optimizer, images, labels = parts()
    engine = Engine(model, optimizer, recipe="fp16", clip_norm=1.0)

    def step() -> None:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        engine.step()

    yield step
    engine.close()


def counted(make, count: Callable[[Callable[[], None]], int]) -> int:
    """Return the count of a step that is neither the first nor the second."""
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.backends.mkldnn.flags(enabled=False),
        make() as step,
    ):
        for _ in range(2):
            step()
        return count(step)


@pytest.fixture(autouse=True)
def _settled(monkeypatch) -> None:
    """Answer the reads of the step before: nothing overflowed, and the scale is the first one."""
    monkeypatch.setattr(HostCopy, "read", lambda copy: [0.0, *[65536.0] * len(copy._values)])


@pytest.mark.filterwarnings("ignore")
def test_a_step_calls_few_functions() -> None:
    assert counted(engines_step, calls) <= MOST_CALLS


@pytest.mark.filterwarnings("ignore")
def test_a_step_calls_no_more_operators_than_pytorchs_own() -> None:
    own, raw = counted(engines_step, operators), counted(pytorchs_step, operators)
    assert own + COPY_TO_HOST <= MOST_OPERATORS * raw
