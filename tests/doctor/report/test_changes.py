"""A change stands in the program letter by letter, with its place, or the advice is in words."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record import Environment, Event, Evidence, Loop, Shape
from halfstep.doctor.record.sites import Site, without_comment
from halfstep.doctor.report.changes import checked, edits_of
from halfstep.doctor.report.listing import Listing
from halfstep.doctor.verdict import Finding

PROGRAM = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # as in the paper
loss = model(torch.ones(1, 2)).sum()
loss.backward()
optimizer.step()
if loss > 0:
    optimizer.step()
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return file


def after_check(path, change, line: int = 5, **environment) -> tuple[str, ...]:
    finding, evidence = given(path, change, line, **environment)
    return checked(finding, evidence, Listing(evidence)).change


def given(path, change, line: int = 5, **environment) -> tuple[Finding, Evidence]:
    site = Site(str(path), line, "", without_comment(PROGRAM.splitlines()[line - 1].strip()))
    event = Event("backward", {}, site)
    loop = Loop(1, (Shape((event,), 1, 0, 0),))
    evidence = Evidence(
        signals=frozenset({"loop", "environment"}),
        loop=loop,
        environment=Environment(**environment),
    )
    return Finding("summary", ("fact",), tuple(change), site=site), evidence


def test_a_line_that_stands_in_the_program_is_given_as_it_is_written_with_its_place(path) -> None:
    line = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    change = (f"- {line}", "+ optimizer = torch.optim.SGD(model.parameters(), lr=0.01)")
    assert after_check(path, change) == (
        "@ train.py:3",
        f"- {line}  # as in the paper",
        change[1],
    )
    assert after_check(path, ("- loss.backward()", "+ loss.sum().backward()")) == (
        "- loss.backward()",
        "+ loss.sum().backward()",
    )


def test_of_two_equal_lines_the_nearer_one_is_meant(path) -> None:
    change = ("- optimizer.step()", "+ optimizer.zero_grad()")
    assert after_check(path, change, line=8)[0] == "- optimizer.step()"
    assert after_check(path, change, line=4) == ("@ train.py:6", *change)


def test_a_part_of_a_line_becomes_the_whole_line(path) -> None:
    assert after_check(path, ("- lr=0.1", "+ lr=0.01  # or use warmup"), line=3) == (
        "- optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # as in the paper",
        "+ optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # or use warmup",
    )


def test_a_comment_on_a_change_is_no_line_to_add(path) -> None:
    change = ("+ # keep fp32; or", "- loss.backward()", "+ loss.float().backward()  # in fp32")
    assert after_check(path, change) == ("# keep fp32; or", *change[1:])
    finding, evidence = given(path, change)
    (edit,) = edits_of(finding, evidence, Listing(evidence))
    assert edit.new == ("loss.float().backward()",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("- model.half()", "+ model.float()"),
            ("in place of code such as", "    model.half()", "write", "    model.float()"),
        ),
        (
            ("- loss.backward()", "+ scaler.scale(loss).backward()"),
            ("in place of", "    loss.backward()", "write code such as"),
        ),
        (
            ("- loss.backward()", "+ # the same line in fp32"),
            ("in place of", "    loss.backward()", "the same line in fp32"),
        ),
        (
            ("- loss.backward()", "+ with torch.autocast('cpu'):"),
            ("in place of", "    loss.backward()", "write"),
        ),
        (("+ # look at this batch",), ("look at this batch",)),
        (("- # the check of the loop", "  loss.backward()"), ("leave out the check of the loop",)),
        (("  loss.backward()", "+ # with retain_graph"), ("at", "    loss.backward()")),
    ],
)
def test_otherwise_the_advice_is_in_words(path, change, words) -> None:
    said = after_check(path, change)
    assert said[: len(words)] == words
    assert not [each for each in said if each[:2] in ("- ", "+ ", "@ ")]


def test_names_that_the_change_itself_defines_are_known(path) -> None:
    change = ("+ scaler = torch.amp.GradScaler()", "- loss.backward()", "+ scaler.scale(loss)")
    assert after_check(path, change) == change


def test_a_line_that_moves_into_a_new_block_is_deleted_and_added(path) -> None:
    change = ("+ if loss > 0:", "      loss.backward()")
    assert after_check(path, change) == (
        "+ if loss > 0:",
        "- loss.backward()",
        "+     loss.backward()",
    )


def test_edits_apply_to_the_file(path) -> None:
    change = ("+ if loss > 0:", "      loss.backward()", "- optimizer.step()")
    finding, evidence = given(path, change)
    lines = path.read_text().splitlines()
    edits = edits_of(finding, evidence, Listing(evidence))
    for each in sorted(edits, key=lambda edit: -edit.line):
        lines[each.line - 1 : each.line] = each.new
    assert lines[4:6] == ["if loss > 0:", "    loss.backward()"]
    assert lines.count("optimizer.step()") == 0


def test_a_file_that_has_changed_since_the_run_is_not_read(path) -> None:
    finding, evidence = given(path, ("- optimizer.step()", "+ optimizer.zero_grad()"))
    path.write_text("# another program\n" + PROGRAM)
    assert Listing(evidence).find("optimizer.step()", finding.site) is None


def test_the_words_are_those_of_the_framework_that_makes_the_steps(path) -> None:
    change = ("+ torch.nn.utils.clip_grad_norm_(parameters, 1.0)", "  optimizer.step()")
    (said,) = after_check(path, change, framework="accelerate")
    assert "accelerator.clip_grad_norm_(" in said
    (said,) = after_check(path, change, framework="transformers")
    assert "TrainingArguments the argument max_grad_norm" in said
    assert len(after_check(path, change)) > 1


TRAINER = """
import torch

class Trainer:
    def fit(self, model, batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (images, labels) in enumerate(batches):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            if number % 3 == 2:
                optimizer.step()
"""


def test_the_line_that_runs_the_loop_is_not_deleted_and_added_around_itself(
    tmp_path, monkeypatch
) -> None:
    from doctor.loops import batches, classifier

    package = tmp_path / "site-packages" / "lightning"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TRAINER)
    spec = importlib.util.spec_from_file_location("lightning", package / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lightning", module)
    spec.loader.exec_module(module)
    with Watch() as watch:
        module.Trainer().fit(classifier(), batches(12))
    evidence = watch.close()
    assert evidence.environment.framework == "lightning"
    (verdict,) = diagnose(evidence).verdicts
    assert verdict.code == "GRADIENTS_CLEARED_EARLY"
    assert verdict.finding.site.text == "module.Trainer().fit(classifier(), batches(12))"
    assert verdict.finding.change == (
        "with Lightning: give Trainer the argument accumulate_grad_batches",
    )


def test_a_block_that_loses_its_only_line_gets_pass(path) -> None:
    assert after_check(path, ("- optimizer.step()",), 8) == ("- optimizer.step()", "+ pass")
    assert after_check(path, ("- optimizer.step()",), 6) == ("- optimizer.step()",)


def test_what_is_only_deleted_and_does_not_apply_is_to_be_left_out(path) -> None:
    assert after_check(path, ("- model.half()",)) == ("leave out code such as", "    model.half()")


def test_a_line_that_continues_a_changed_one_stays_where_it_is(path) -> None:
    first, second = "optimizers = [torch.optim.SGD(model.parameters(), lr=0.1),", "optimizer]"
    path.write_text(PROGRAM + f"{first}\n              {second}\n")
    change = (f"- {first}", f"+ {first.replace('0.1', '0.01')}", f"                {second}")
    found = after_check(path, change)
    assert change[1] in found
    assert not any(second in each for each in found if each.startswith(("- ", "+ ")))
