"""A bad step is held back from fused optimizers on request, and never without it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier
from halfstep.doctor import Watch, watch

BAD = 3


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Train; the parameters as they were when the bad step's batch came."""
    before = {}
    for number, (images, labels) in enumerate(batches(6)):
        if number == BAD:
            images[1, 2] = float("nan")
            before = copy.deepcopy(dict(model.named_parameters()))
        elif number == BAD + 1:
            optimizer.seen = {name: each.clone() for name, each in model.named_parameters()}
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return before


FUSED = [
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True),
]


@pytest.mark.parametrize("make", FUSED, ids=["AdamW", "SGD"])
def test_a_bad_step_leaves_parameters_as_they_were(make) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = make(model.parameters())
    with watch(model, optimizer, hold_back=True, quiet=True) as session:
        before = train(model, optimizer)
    for name, each in before.items():
        assert torch.equal(each, optimizer.seen[name])
    assert all(each.isfinite().all() for each in model.parameters())
    assert not hasattr(optimizer, "found_inf")
    assert "CORRUPT_BATCH" in [each.code for each in session.diagnose().verdicts]


@pytest.mark.usefixtures("_processor_runs_behind")
@pytest.mark.parametrize("options", [{}, {"hold_back": True}, {"waits": True}], ids=str)
def test_a_device_that_runs_behind_still_has_the_parameters_of_the_bad_step(options) -> None:
    # Its numbers are read in the next step, unless doctor waits: without being held back the bad
    # one is applied by then.
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = FUSED[1](model.parameters())
    observer = Watch(**options)
    observer.know([model], [optimizer], None)
    with observer:
        for number, (images, labels) in enumerate(batches(6)):
            optimizer.zero_grad()
            outputs = model(images)
            loss = functional.cross_entropy(outputs, labels)
            if number == BAD:
                loss = loss + (0 * outputs[0, 0]).sqrt()  # finite, with gradients that are not
            loss.backward()
            optimizer.step()
    plain = next(each for each in observer.close().replays if each.name == "plain")
    assert plain.iteration == BAD
    assert plain.same is (True if options else None)
    assert ("before its loss was read" in plain.note) is (not options)


def test_without_the_request_results_are_the_programs_own() -> None:
    models = []
    for watched in (False, True):
        model = classifier()
        optimizer = FUSED[0](model.parameters())
        if watched:
            with watch(model, optimizer, quiet=True):
                train(model, optimizer)
        else:
            train(model, optimizer)
        models.append(model)
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine.nan_to_num(-7.0), theirs.nan_to_num(-7.0))
    assert any(each.isnan().any() for each in models[0].parameters())


def test_an_optimizer_that_cannot_skip_is_refused_with_the_line_to_write() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"fused optimizers.*write AdamW\(\.\.\., fused=True\)"):
        watch(model, optimizer, hold_back=True)


def test_an_unchanged_program_is_told_what_is_not_held_back() -> None:
    from halfstep.doctor import diagnose

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(hold_back=True) as observer:
        train(model, optimizer)
    notes = diagnose(observer.close()).notes
    assert "steps of SGD are not held back; write SGD(..., fused=True)" in notes
