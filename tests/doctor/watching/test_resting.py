"""A watch that rests in ordinary steps says of the others what one says that never does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from doctor.watching.soon import rest_soon
from halfstep import Engine, step_observer
from halfstep.doctor import Evidence, Watch, diagnose
from halfstep.doctor.watching import resting
from halfstep.doctor.watching.attach import Attachment
from halfstep.doctor.watching.receiver import Receiver
from halfstep.engine import LossScaleCollapse

STEPS, BAD = 12, 8


class BadBackward(torch.autograd.Function):
    """Gives NaN for a gradient when told to."""

    on = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan if BadBackward.on else grad


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(12, 32), nn.BatchNorm1d(32)
        self.last = nn.Linear(32, 4)
        self.factor, self.fails = 1.0, False

    def forward(self, x):
        if self.fails:
            raise ValueError("this batch is not for me")
        x = BadBackward.apply(torch.relu(self.norm(self.first(x))))
        return self.last(x * (torch.rand_like(x) > 0.2)) * self.factor


def log_of_softmax(logits, labels):
    return -(logits.float().softmax(1) + 0).log().gather(1, labels[:, None]).mean()


def train(recipe="fp32", *, spoil=None, smaller=-1, criterion=functional.cross_entropy, **settings):
    """Train a few steps, one of them spoiled, as the trainer does: it says what it runs."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    count = settings.get("accumulate", 1)
    with Engine(model, optimizer, recipe=recipe, **settings) as engine:
        for number in range(STEPS * count):
            size = 4 if number == smaller else 8
            images = torch.randn(size, 12, generator=generator)
            labels = torch.randint(0, 4, (size,), generator=generator)
            if number == BAD * count:
                images = images if spoil is None else spoil(model, images)
            with engine.autocast():
                step_observer.active.runs(engine.model, criterion, images, labels)
                loss = criterion(engine.model(images), labels)
                step_observer.active.ran(loss)
            engine.backward(loss)
            engine.step()
            BadBackward.on, model.factor = False, 1.0


def corrupt_batch(model, images):
    images = images.clone()
    images[2, 3] = math.inf
    return images


def bad_backward(model, images):
    BadBackward.on = True
    return images


def overflow(model, images):
    model.factor = 1e6
    return images


def exception(model, images):
    model.fails = True
    return images


@pytest.fixture
def soon(monkeypatch):
    """Rest soon, and count the steps that pass."""
    return rest_soon(monkeypatch)


def watched(*, rests, **given) -> Evidence:
    with Watch(rests=rests) as watch:
        try:
            train(**given)
        except (ValueError, LossScaleCollapse) as error:
            watch.note_ending(error)
    assert not watch.troubles, watch.troubles[0]
    return watch.close()


def without_places(evidence: Evidence) -> Evidence:
    """Leave out lines, and the norms and sources that a watch at rest does not know."""
    numbers = evidence.numbers
    steps = tuple(replace(each, gradient_norm=None) for each in numbers.steps)
    before = tuple(replace(each, gradient_norm=None) for each in numbers.before_bad)
    shapes = tuple(
        replace(each, events=tuple(replace(event, site=None) for event in each.events))
        for each in evidence.loop.shapes
    )
    return replace(
        evidence,
        numbers=replace(numbers, steps=steps, before_bad=before),
        loop=replace(evidence.loop, shapes=shapes),
        births=tuple(replace(each, site=None, user_site=None) for each in evidence.births),
        samples=(),
        inputs=tuple(replace(each, is_known=False) for each in evidence.inputs),
        calls=(),
        ending=replace(evidence.ending, site=None),
    )


CASES = {
    "healthy": {},
    "corrupt batch": {"spoil": corrupt_batch},
    "corrupt batch in fp16": {"spoil": corrupt_batch, "recipe": "fp16"},
    "corrupt batch, clipped": {"spoil": corrupt_batch, "clip_norm": 1.0},
    "corrupt batch in a window": {"spoil": corrupt_batch, "recipe": "fp16", "accumulate": 2},
    "bad backward": {"spoil": bad_backward},
    "bad backward in bf16": {"spoil": bad_backward, "recipe": "bf16"},
    "bad backward in o2": {"spoil": bad_backward, "recipe": "o2"},
    "overflow in fp16": {"spoil": overflow, "recipe": "fp16"},
    "log of zero": {"spoil": overflow, "criterion": log_of_softmax},
    "exception": {"spoil": exception},
    "window of two": {"accumulate": 2, "recipe": "bf16"},
}

NAMED = {
    "corrupt batch": ["CORRUPT_BATCH"],
    "corrupt batch in fp16": ["CORRUPT_BATCH"],
    "corrupt batch, clipped": ["CORRUPT_BATCH"],
    "bad backward": ["NOT_FINITE"],
    "bad backward in bf16": ["NOT_FINITE"],
    "overflow in fp16": ["NOT_FINITE"],
    "log of zero": ["LOG_OF_ZERO"],
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_a_step_is_the_same(soon, case):
    full = watched(rests=False, **CASES[case])
    assert not soon
    rested = watched(rests=True, **CASES[case])
    assert sum(soon) >= BAD - 3
    mine, its = without_places(rested), without_places(full)
    for name in vars(type(full))["__dataclass_fields__"]:
        assert repr(getattr(mine, name)) == repr(getattr(its, name)), (
            name
        )  # NaN differs from itself
    codes = [each.code for each in diagnose(full).verdicts]
    assert [each.code for each in diagnose(rested).verdicts] == codes
    assert codes == NAMED.get(case, [])


def test_a_step_of_a_new_shape_and_each_due_step_are_watched_in_full(soon, monkeypatch):
    monkeypatch.setattr(resting, "is_due", lambda step: step == 6)
    evidence = watched(rests=True, smaller=9)
    assert (len(soon), all(soon)) == (STEPS - 4, True)
    assert evidence.loop.iterations == STEPS
    assert evidence.static.models[0].calls == STEPS


def test_a_compiled_model_is_always_watched(soon, monkeypatch):
    monkeypatch.setattr(resting, "is_compiled", lambda model: True)
    watched(rests=True)
    assert not soon


def test_a_function_is_not_compiled_again_for_a_rest():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.ReLU())

        def forward(self, x):
            return self.inner(x)

    torch._dynamo.reset()
    teacher = torch.compile(Outer(), backend=backend)
    attachment = Attachment(Receiver(), step_observer.NOBODY)
    try:
        teacher(torch.ones(2))
        attachment.rest()
        teacher(torch.ones(2))
    finally:
        attachment.remove()
    assert len(compiled) == 1


def test_a_validation_is_seen_though_the_watch_rests(soon):
    with Watch(rests=True) as watch:
        train()
        model, images = Model().eval(), torch.full((2, 12), math.nan)
        step_observer.active.evaluates()
        with torch.no_grad():
            model(images)
        evidence = watch.close()
    assert soon
    assert (evidence.evaluation.calls, evidence.evaluation.bad) == (1, 1)


def test_nothing_stays_behind_of_a_watch_that_is_left_while_it_rests(soon):
    call, enter = nn.Module.__call__, torch.autocast.__enter__
    watch = Watch(rests=True).start()
    with pytest.raises(ValueError, match="not for me"):
        train(spoil=exception)
    watch.abandon()
    assert soon
    assert (nn.Module.__call__, torch.autocast.__enter__) == (call, enter)
    assert step_observer.active is step_observer.NOBODY
