"""Imbalances that may be intended are notes, and no causes."""

from __future__ import annotations

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


def test_a_part_without_gradients_is_a_note() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(images).detach())

    def program() -> None:
        model = Detached()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for images, labels in batches(6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    diagnosis = diagnosis_of(program)
    assert not diagnosis.verdicts
    assert any(each.startswith("2 of 4 parameters of Adam never had") for each in diagnosis.notes)
