"""A watched program computes, bit for bit, what it computes alone, and torch is left as it was."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_pre_hooks

from doctor.loops import batches, half_autocast
from halfstep.doctor import Watch, watch
from halfstep.doctor.watching.bus import kinds


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )


def train(*, scaled: bool, bad_batch: int = -1, closure: bool = False) -> list[torch.Tensor]:
    """Losses, parameters and buffers, and what the generators give afterwards."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=scaled)
    losses = []
    for number, (images, labels) in enumerate(batches(9)):
        if number == bad_batch:
            images[1, 2] = float("inf")

        def run(images=images, labels=labels):
            optimizer.zero_grad()
            with half_autocast():
                loss = functional.cross_entropy(model(images), labels)
            scaler.scale(loss / 2).backward()
            losses.append(loss.detach())
            return loss

        if closure:
            optimizer.step(run)
        else:
            run()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        schedule.step()
    model.eval()
    with torch.no_grad():
        losses += [model(images) for images, _ in batches(2)]
    generators = [torch.rand(2), torch.tensor([random.random(), np.random.rand()])]  # noqa: NPY002
    return [*losses, *copy.deepcopy(list(model.state_dict().values())), *generators]


def seeded(**how) -> list[torch.Tensor]:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    return train(**how)


@pytest.mark.parametrize(
    "how",
    [
        {"scaled": True},
        {"scaled": False},
        {"scaled": True, "bad_batch": 4},
        {"scaled": False, "bad_batch": 4},
        {"scaled": False, "closure": True},
    ],
    ids=lambda how: ", ".join(name for name, value in how.items() if value is not False),
)
def test_results_are_bitwise_those_of_an_unwatched_program(how: dict) -> None:
    alone = seeded(**how)
    observer = Watch()
    with observer:
        watched = seeded(**how)
    assert not observer.troubles
    assert observer.close().loop.iterations == 9
    for mine, theirs in zip(watched, alone, strict=True):
        assert torch.equal(mine.nan_to_num(-7.0), theirs.nan_to_num(-7.0))


POINTS = [
    (nn.Module, "__call__"),
    (nn.Module, "zero_grad"),
    (torch.autograd, "backward"),
    (torch, "compile"),
    (torch.amp.GradScaler, "__init__"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "unscale_"),
    (torch.amp.GradScaler, "step"),
    (torch.amp.GradScaler, "update"),
    (torch.amp.GradScaler, "load_state_dict"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.optim.Optimizer, "add_param_group"),
    (torch.optim.Optimizer, "load_state_dict"),
    (torch.optim.lr_scheduler.StepLR, "step"),
    (torch.optim.lr_scheduler.LRScheduler, "step"),
]


def test_everything_is_removed_at_the_end_whatever_happened() -> None:
    before = [getattr(owner, name) for owner, name in POINTS]
    hooks = len(_global_optimizer_pre_hooks)

    def fail() -> None:
        with Watch():
            assert nn.Module.__call__ is not before[0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [getattr(owner, name) for owner, name in POINTS] == before
    assert len(_global_optimizer_pre_hooks) == hooks
    assert not torch.overrides._get_current_function_mode_stack()


def test_an_exception_in_the_program_is_its_own_and_is_noted() -> None:
    class RefusedError(Exception):
        pass

    class Refusing(nn.Module):
        def forward(self, images):
            raise RefusedError("not today")

    observer = Watch()
    with pytest.raises(RefusedError, match="not today"), observer:
        Refusing()(torch.ones(1))
    ending = observer.close().ending
    assert ending.kind == "RefusedError"
    assert ending.message == "not today"
    assert ending.site.text == 'raise RefusedError("not today")'


def test_an_error_of_doctors_own_does_not_reach_the_program(monkeypatch) -> None:
    def fail(*_args, **_kwargs):
        raise RuntimeError("doctor is ill")

    alone = seeded(scaled=True)
    observer = Watch()
    bus = observer.bus
    for thing in (bus.grammar, bus.tape, bus.registry, *map(bus.__getitem__, kinds())):
        for name in ("add", "open", "close", "take", "count", "notice_writes", "note_reached"):
            if hasattr(thing, name):
                monkeypatch.setattr(thing, name, fail, raising=False)
    with observer:
        watched = seeded(scaled=True)
    assert any("doctor is ill" in each for each in observer.troubles)
    for mine, theirs in zip(watched, alone, strict=True):
        assert torch.equal(mine, theirs)


def test_two_watches_at_once_are_refused() -> None:
    with Watch(), pytest.raises(ValueError, match="already watched"):
        Watch().start()


def test_watch_prints_its_diagnosis_when_its_block_ends(capsys) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as session:
        for images, labels in batches(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    assert session.diagnose().verdicts == ()
    assert "nothing found" in capsys.readouterr().err


def test_watch_knows_what_was_made_before_it() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    session = watch(model, optimizer, scaler, quiet=True)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        optimizer.step()
        scaler.update()
    assert [each.code for each in session.diagnose().verdicts] == ["STEP_BYPASSES_SCALER"]


def test_formats_are_those_of_the_first_step_though_a_model_is_cast_back_later() -> None:
    observer = Watch()
    with observer:
        model = nn.Linear(6, 3).half()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for images, labels in batches(2):
            optimizer.zero_grad()
            functional.cross_entropy(model(images.half()).float(), labels).backward()
            optimizer.step()
        model.float()
    static = observer.close().static
    assert static.optimizers[0].formats == {"fp16": 2}
    assert static.models[0].formats == {"fp16": 2}
    assert static.models[0].first_half == "weight"


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_a_traced_graph_has_nothing_of_doctor() -> None:
    model, images = network().eval(), torch.ones(2, 6)

    def scaled(images: torch.Tensor) -> torch.Tensor:
        return images * images.sum() + torch.tensor(2.0)

    def traced() -> list[list[str]]:
        graphs = [torch.jit.trace(each, images).inlined_graph for each in (model, scaled)]
        return [[node.kind() for node in graph.nodes()] for graph in graphs]

    alone = traced()
    with Watch():
        assert traced() == alone


def same(module: nn.Module, given, made) -> None:
    """A hook that changes nothing."""


class Moded(nn.Linear):
    def train(self, mode: bool = True) -> nn.Module:
        """Set the mode."""
        return super().train(mode)


def test_the_programs_own_hooks_are_saved_and_its_methods_are_restored() -> None:
    model, method = Moded(6, 3), vars(Moded)["train"]
    with Watch() as watch:
        model.register_full_backward_hook(same)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(2, 6, requires_grad=True)).sum().backward()
            optimizer.step()
            model.eval()
            model.train()
        assert vars(Moded)["train"] is not method
        saved, copied = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    assert not watch.troubles
    assert vars(Moded)["train"] is method
    for each in (saved, copied):
        assert [*each._backward_hooks.values()] == [same]
