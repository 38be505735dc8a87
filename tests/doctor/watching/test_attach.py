"""The wrappers of a watch are gone when it ends, and compiled code does not notice them."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from halfstep import step_observer
from halfstep.doctor import Watch
from halfstep.doctor.signals.data.sampling import RowSamples
from halfstep.doctor.signals.signal import Hook
from halfstep.doctor.tape.listener import Listener
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.doctor.watching.bus import Bus


def originals() -> list[object]:
    hooks = [each for each in Bus().hooks() if isinstance(each, Hook)]
    return [vars(hook.owner).get(hook.name) for hook in hooks]


def test_nothing_stays_behind_of_a_watch_that_is_left() -> None:
    before = originals()
    watch = Watch().start()
    assert originals() != before
    watch.abandon()
    assert originals() == before
    assert step_observer.active is step_observer.NOBODY


def test_wrappers_of_other_code_stay_and_record_nothing(monkeypatch) -> None:
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)  # which comes back last
    watch = Watch().start()
    ours = nn.Module.__call__

    def other(module, *args, **kwargs):
        return ours(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", other)
    watch.abandon()
    assert nn.Module.__call__ is other
    model = nn.Linear(2, 1)
    model(torch.ones(2)).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_compiled_model_is_compiled_once() -> None:
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Sequential(nn.ReLU())), backend=backend)
    bus = Bus()
    bus.attach()
    try:
        for _ in range(3):
            model(torch.ones(2))
    finally:
        bus.detach()
    assert len(compiled) == 1


def test_an_error_in_a_watched_block_leaves_nothing_behind() -> None:
    before = originals()
    with pytest.raises(ValueError, match="not for me"), Watch():
        raise ValueError("not for me")
    assert originals() == before


def test_a_copy_of_a_model_is_reported_tensor_by_tensor() -> None:
    """The memo of `copy.deepcopy` grows with each tensor; to search it is quadratic in a model."""
    heard = []
    listener = Listener(
        lambda call, result: heard.append(len(tensors_in((call.args, result)))), lambda *_: None
    )
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    listener.start()
    copied = copy.deepcopy(model)
    listener.stop()
    assert len(heard) >= 24
    assert max(heard) <= 2
    assert torch.equal(copied[11].weight, model[11].weight)


def test_a_signal_that_fails_loses_only_its_own_record(monkeypatch) -> None:
    def fail(_):
        raise ZeroDivisionError

    monkeypatch.setattr(RowSamples, "freeze", fail)
    watch = Watch().start()
    model = nn.Linear(2, 1)
    model(torch.ones(2)).sum().backward()
    evidence = watch.close()
    assert "ZeroDivisionError" in watch.troubles[0]
    assert "loop" in evidence.signals
    assert "targets" in evidence.signals
