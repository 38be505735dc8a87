"""Of several causes the one that the others come of is named first."""

from __future__ import annotations

import runpy
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from doctor.loops import batches, classifier
from doctor.rules.test_rules import codes, watched
from halfstep.doctor import Evidence, Watch, diagnose

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.doctor.verdict import Finding, Verdict


def test_gradients_that_vanish_come_before_the_updates_that_are_lost_with_them() -> None:
    watch = Watch()
    with watch:
        model = classifier().half()
        model[1].float()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for images, _ in batches(9):
            features = model[0](images.half()).float()
            outputs = model[3](model[2](model[1](features)).half())
            optimizer.zero_grad()
            (outputs.float().square().mean() * 1e-6).backward()
            optimizer.step()
    assert codes(watch.close()) == ["GRADIENTS_UNDERFLOW", "UPDATES_ROUNDED_AWAY"]


def test_an_eps_of_zero_comes_before_half_statistics_that_training_does_not_read() -> None:
    watch = Watch()
    with watch:
        model = classifier().half()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for images, labels in batches(4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images.half()).float(), labels).backward()
            optimizer.step()
    assert codes(watch.close()) == ["OPTIMIZER_EPS_UNDERFLOWS", "NORM_STATISTICS_IN_HALF"]


def test_a_share_of_steps_is_over_all_shapes_of_iterations() -> None:
    # The first iteration has another shape than the others, which clear gradients at their end.
    evidence = watched("GRADIENTS_CHANGED_WHILE_SCALED", "broken")
    assert len(evidence.loop.shapes) > 1
    count = evidence.loop.iterations
    finding = diagnose(evidence).verdicts[0].finding
    assert finding.facts[0].startswith(f"in {count} of {count} steps, ")


def never_cleared(*, clipped: bool) -> dict[str, Finding]:
    """Return what is found in a loop that never clears its gradients."""
    watch = Watch()
    with watch:
        model = classifier()
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
        for images, labels in batches(5):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            if clipped:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(sgd)
            scaler.update()
    return {each.code: each.finding for each in diagnose(watch.close()).verdicts}


def test_a_change_names_the_optimizer_as_the_program_does() -> None:
    (finding,) = never_cleared(clipped=False).values()
    assert finding.change[1].startswith("+ sgd.zero_grad()")


def test_a_larger_eps_is_put_into_the_program_s_own_call_or_beside_it(tmp_path) -> None:
    finding = diagnose(watched("OPTIMIZER_EPS_UNDERFLOWS", "broken")).verdicts[0].finding
    assert finding.change[1:] == (
        "- optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=eps)",
        "+ optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)",
    )
    assert finding.site.text == finding.change[1][2:]
    (found,) = ran(HIDDEN_EPS, tmp_path / "hidden.py")
    assert found.finding.change[1:] == (
        "at",
        "    optimizer = torch.optim.Adam(model.parameters(), **settings)",
        "give Adam the argument eps=1e-4",
    )


HIDDEN_EPS = """
import torch
from torch.nn import functional
from doctor.loops import batches
model = torch.nn.Linear(6, 3).half()
settings = {"lr": 0.01}
optimizer = torch.optim.Adam(model.parameters(), **settings)
for images, labels in batches(2):
    optimizer.zero_grad()
    functional.cross_entropy(model(images.half()).float(), labels).backward()
    optimizer.step()
"""


def test_an_unscale_that_comes_too_late_is_moved_and_one_that_is_missing_added() -> None:
    missing = diagnose(watched("GRADIENTS_CHANGED_WHILE_SCALED", "broken")).verdicts[0].finding
    # The line is the first one of its block.
    assert [each[0] for each in missing.change] == ["-", "+", "+"]
    assert missing.change[1].startswith("+ scaler.unscale_(optimizer)")
    assert missing.change[0][2:] == missing.change[2][2:]
    watch = Watch()
    with watch:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
        for images, labels in batches(4):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    late = diagnose(watch.close()).verdicts[0].finding
    assert [each[0] for each in late.change] == ["+", " ", "-"]
    assert late.change[0][2:] == late.change[2][2:] == "scaler.unscale_(optimizer)"


ACCUMULATING = """
import torch
from doctor.loops import batches, classifier, loss_of
net = classifier()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for number, (images, labels) in enumerate(batches(8)):
    scaler.scale(loss_of(net, images, labels) / 4).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    if number % 4 == 3:
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
"""


def changed(source: str, change: tuple[str, ...]) -> str:
    """Return a program with a change made: "-" lines deleted, "+" lines put above the next one."""
    lines = source.splitlines()
    added: list[str] = []
    for each in change:
        mark, text = each[0], each[2:]
        if mark == "@":  # the place of the next line
            continue
        if mark == "+":
            added.append(text)
            continue
        place = next(number for number, line in enumerate(lines) if line.strip() == text)
        indent = lines[place][: -len(text)]
        lines[place : place + 1] = [
            *(indent + line for line in added),
            *([] if mark == "-" else [lines[place]]),
        ]
        added = []
    assert not added
    return "\n".join(lines)


def ran(source: str, path: Path) -> list[Verdict]:
    path.write_text(source)
    watch = Watch()
    with watch:
        runpy.run_path(str(path))
    return list(diagnose(watch.close()).verdicts)


@pytest.mark.parametrize("late", [False, True])
def test_clipping_after_every_backward_is_moved_to_right_before_the_step(
    tmp_path: Path, late: bool
) -> None:
    step = "        scaler.step(opt)\n"
    unscale = "        scaler.unscale_(opt)\n" if late else ""
    source = ACCUMULATING.replace(step, unscale + step)
    (found,) = ran(source, tmp_path / "before.py")
    assert found.code == "GRADIENTS_CHANGED_WHILE_SCALED"
    mended = changed(source, found.finding.change)
    assert mended.count("unscale_(opt)") == mended.count("clip_grad_norm_") == 1
    assert ran(mended, tmp_path / "after.py") == []


def test_a_limit_written_by_hand_in_an_accumulation_is_not_moved_line_by_line(
    tmp_path: Path,
) -> None:
    clip = "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
    by_hand = "    for each in net.parameters():\n        each.grad.clamp_(-1.0, 1.0)\n"
    (found,) = ran(ACCUMULATING.replace(clip, by_hand), tmp_path / "by_hand.py")
    assert [each[0] for each in found.finding.change] == ["@", "-", "+", "#", "+"]
    assert found.finding.change[:2] == ("@ by_hand.py:12", "- scaler.step(opt)")
    assert found.finding.change[2].startswith("+ scaler.unscale_(opt)")
    assert found.finding.change[4] == "+ scaler.step(opt)"


def test_gradients_never_cleared_are_scaled_again_by_every_backward_pass() -> None:
    found = never_cleared(clipped=True)
    assert set(found) == {"GRADIENTS_CHANGED_WHILE_SCALED", "GRADIENTS_NOT_CLEARED"}
    assert found["GRADIENTS_CHANGED_WHILE_SCALED"].facts[0].startswith("in 5 of 5 steps, ")


def test_a_step_that_an_error_prevented_counts_among_the_steps() -> None:
    watch = Watch()
    with watch:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        images, labels = next(iter(batches(1)))
        scaler.scale(torch.nn.functional.cross_entropy(model(images), labels)).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
    found = {each.code: each.finding for each in diagnose(watch.close()).verdicts}
    assert found["UNSCALED_TWICE"].facts == ("in 1 of 1 step, this line called unscale_()",)


def test_an_unscale_after_the_step_is_moved_before_it() -> None:
    late = watched("UNSCALED_AFTER_STEP", "broken")
    found = {each.code: each.finding for each in diagnose(late).verdicts}
    assert list(found) == ["UNSCALED_AFTER_STEP"]
    unscale = "scaler.unscale_(optimizer)"
    assert found["UNSCALED_AFTER_STEP"].change == (
        "@ unscaled_after_step.py:19",
        "- scaler.step(optimizer)",
        f"+ {unscale}",
        "+ scaler.step(optimizer)",
        f"- {unscale}",
    )


def test_a_growing_loss_says_nothing_of_fp32_where_no_step_was_replayed_in_it() -> None:
    evidence = watched("LEARNING_RATE_TOO_HIGH", "broken")

    def facts(evidence: Evidence) -> str:
        return " ".join(diagnose(evidence).verdicts[0].finding.facts)

    assert "same step in fp32" in facts(evidence)
    others = tuple(each for each in evidence.replays if each.name != "fp32")
    assert "same step in fp32" not in facts(replace(evidence, replays=others))
