"""Imbalances that may be intended are notes, and no causes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from doctor.loops import batches, classifier
from halfstep.doctor import Diagnosis, Watch, diagnose


def diagnosis_of(program) -> Diagnosis:
    with Watch() as watch:
        program()
    assert not watch.troubles
    return diagnose(watch.close())


def accumulate(*, epochs: int, count: int, parts: int, short: bool, clears: bool) -> None:
    """Accumulate; the last window of an epoch is used if `short`, or cleared, or goes on."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        if clears:
            optimizer.zero_grad()
        for number, (images, labels) in enumerate(batches(count)):
            (nn.functional.cross_entropy(model(images), labels) / parts).backward()
            if number % parts == parts - 1 or (short and number == count - 1):
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"count": 10, "short": False, "clears": False},
            ["2 steps of SGD used 6 backward passes", "used the gradients of 2 backward passes"],
        ),
        ({"count": 10, "short": True, "clears": False}, ["3 steps of SGD used 2 backward passes"]),
        ({"count": 9, "short": False, "clears": True}, ["used the gradients of 3 backward passes"]),
        ({"count": 12, "short": False, "clears": False}, []),
    ],
    ids=["leaks", "short", "dropped", "even"],
)
def test_windows_of_another_size_are_notes(given, said) -> None:
    diagnosis = diagnosis_of(lambda: accumulate(epochs=3, parts=4, **given))
    assert not diagnosis.verdicts
    notes = [each for each in diagnosis.notes if "backward pass" in each]
    assert len(notes) == len(said)
    assert all(any(part in note for note in notes) for part in said)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for images, labels in batches(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test_parameters_that_do_not_train_on_purpose_are_notes() -> None:
    def unused() -> None:
        model = nn.ModuleDict({"used": classifier(), "other": nn.Linear(16, 2)})
        train(model["used"], torch.optim.Adam(model.parameters(), lr=0.01))

    def at_rate_0() -> None:
        model = classifier()
        model[1] = nn.Identity()
        groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[3].parameters()}]
        train(model, torch.optim.SGD(groups, lr=0.01))

    def loaded() -> None:
        model = classifier()
        model[1] = nn.Identity()
        model.load_state_dict(model.state_dict())
        train(model, torch.optim.SGD(model[3].parameters(), lr=0.01))

    said = (
        (unused, "2 of 8 parameters of Adam never had a gradient"),
        (at_rate_0, "2 of 4 parameters of SGD have a learning rate of 0"),
        (loaded, "2 parameters of Sequential with gradients are in no optimizer: 0.weight"),
    )
    for program, note in said:
        diagnosis = diagnosis_of(program)
        assert not diagnosis.verdicts
        assert any(each.startswith(note) for each in diagnosis.notes), diagnosis.notes


def test_weights_that_the_loop_clips_are_a_note() -> None:
    def program() -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number, (images, labels) in enumerate(batches(12)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if number % 3 == 2:
                for each in model.parameters():
                    each.data.clamp_(-0.1, 0.1)

    diagnosis = diagnosis_of(program)
    assert not diagnosis.verdicts
    assert any("clamp_ in line" in each and "6 parameters" in each for each in diagnosis.notes)


@pytest.mark.parametrize(("decay", "left"), [(0.999, "98%"), (0.9, "")])
def test_an_average_that_is_still_its_beginning_is_a_note(decay: float, left: str) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        average = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for images, labels in batches(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for value, other in zip(average.parameters(), model.parameters(), strict=True):
                    value.lerp_(other, 1 - decay)

    diagnosis = diagnosis_of(program)
    assert not diagnosis.verdicts
    notes = [each for each in diagnosis.notes if "weights of its beginning" in each]
    assert len(notes) == bool(left)
    assert all(f"after 20 steps, {left} of it" in each for each in notes)
