"""A bundle repeats its step without the program, and a bad one is refused in one line."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from doctor.loops import batches
from doctor.replay.test_births import FAULTS, in_a_checkpoint
from halfstep.cli import main
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.bundle import recorder
from halfstep.doctor.bundle.files import read, write_evidence
from halfstep.doctor.replay.rerun import Rerun
from halfstep.doctor.saved import explain

OF_FILES = "of_files.write.default"


class Network(nn.Module):
    """What a step may rest on: dropout, running statistics, an embedding, strides, a fault."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift = nn.Linear(6, 16)
        self.names = nn.Embedding(3, 16)
        self.drop = nn.Dropout(0.3)
        self.norm = nn.BatchNorm1d(16)
        self.inner = Fault()
        self.head = nn.Linear(16, 3)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        features = self.norm(self.drop(self.lift(images))) + self.names(labels)
        return self.head(self.inner(features.t().contiguous().t()))


class Fault(nn.Module):
    """Goes wrong from the third step on."""

    fault = staticmethod(lambda features: features)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.fault(features)


def leave(directory, fault, *, scaled: bool = False, accumulate: int = 1):
    """Train until a fault, and leave its bundle; the evidence."""
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    observer = Watch(bundle=directory)
    observer.know([model], [optimizer], scaler if scaled else None)
    with observer:
        for number, (images, labels) in enumerate(batches(4 * accumulate)):
            if number == 2 * accumulate:
                model.inner.fault = fault
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=scaled):
                loss = functional.cross_entropy(model(images, labels), labels) / accumulate
            scaler.scale(loss).backward()
            if number % accumulate == accumulate - 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert not observer.troubles, observer.troubles
    assert not observer.note, observer.note
    evidence = observer.close()
    write_evidence(directory, evidence)
    return evidence


@pytest.mark.parametrize(
    "fault",
    [*(each for each, _, _ in FAULTS), in_a_checkpoint],
    ids=lambda each: each.__name__,
)
def test_a_bundle_repeats_the_step_to_the_bit_and_gives_the_same_birth(fault, tmp_path) -> None:
    evidence = leave(tmp_path / "bundle", fault)
    bundle = read(tmp_path / "bundle")
    step = Rerun(bundle.recording, bundle.tensors, 2, "", bundle.loss)
    assert step.plain().same
    assert step.traced() == evidence.births
    theirs = next(each for each in evidence.replays if each.name == "fp32")
    mine = step.fp32()
    assert (mine.finite, mine.note) == (theirs.finite, "")
    diagnosis, _, said = explain(tmp_path / "bundle")
    assert diagnosis == diagnose(evidence)
    assert "step 2 repeats here with the same bits" in said


def test_a_window_under_a_scaler_repeats_at_its_scale_and_at_another(tmp_path) -> None:
    leave(tmp_path / "bundle", FAULTS[4][0], scaled=True, accumulate=2)
    bundle = read(tmp_path / "bundle")
    step = Rerun(bundle.recording, bundle.tensors, 2, "", bundle.loss)
    assert bundle.recording.scale == 1024
    assert len(bundle.recording.losses) == 2
    assert step.plain().same
    assert step.at_scale(1.0).scale == 1


def test_gradients_are_those_of_the_program(tmp_path) -> None:
    def root(features):
        return (features * 0).sum().sqrt() + features

    leave(tmp_path / "bundle", root)
    bundle = read(tmp_path / "bundle")
    outcome = Rerun(bundle.recording, bundle.tensors, 2, "", None)._run()
    model, found = Network(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(3)):
        model.inner.fault = root if number == 2 else Fault.fault
        optimizer.zero_grad()
        functional.cross_entropy(model(images, labels), labels).backward()
        found = {name: each.grad.clone() for name, each in model.named_parameters()}
        optimizer.step()
    assert set(bundle.recording.gradients) == set(found)
    for name, mine in zip(bundle.recording.gradients, outcome.gradients.values(), strict=True):
        assert torch.equal(mine.nan_to_num(-7.0), found[name].nan_to_num(-7.0))


@pytest.fixture
def bundle(tmp_path):
    leave(tmp_path / "bundle", FAULTS[4][0])
    return tmp_path / "bundle"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))


def test_the_command_explains_a_bundle_and_evidence_alone(bundle, tmp_path, capsys) -> None:
    assert main(["doctor", str(bundle)]) == 0
    said = capsys.readouterr().err
    assert "LOG_OF_ZERO" in said
    assert "step 2 repeats here with the same bits: -inf from aten.log in module inner" in said
    report = tmp_path / "report"
    assert main(["doctor", "--report", str(report), str(bundle / "evidence.json")]) == 0
    assert "LOG_OF_ZERO" in capsys.readouterr().err
    for alone in (report / "diagnosis.json", report):
        assert main(["doctor", str(alone)]) == 0
        said = capsys.readouterr().err
        assert "LOG_OF_ZERO" in said
        assert "repeats" not in said


def test_the_directory_of_a_report_stands_for_its_bundle(bundle, capsys) -> None:
    assert main(["doctor", str(bundle.parent)]) == 0
    assert "step 2 repeats here with the same bits" in capsys.readouterr().err


def change(path, edit) -> None:
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


def first_operator(record) -> dict:
    return next(each for each in record["recording"]["instructions"] if each["name"])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda b: (b / "step.json").write_text("{}"),
            "step.json is not a valid doctor file: about",
        ),
        (lambda b: (b / "step.json").write_text("not"), "step.json is not a valid doctor file"),
        (lambda b: (b / "tensors.safetensors").unlink(), "there is no file"),
        (lambda b: (b / "tensors.safetensors").write_bytes(b"zip"), "tensors.safetensors is not"),
        (lambda b: save_file({}, b / "tensors.safetensors"), "tensors.safetensors lacks tensor"),
        (lambda b: (b / "evidence.json").write_text('{"loop": 3}'), "evidence.json is not"),
        (
            lambda b: (b / "evidence.json").write_text("{}"),
            "evidence.json is not a valid doctor file",
        ),
        (lambda b: (b / "step.json").unlink(), "neither a run's directory nor a bundle"),
        (lambda b: change(b / "step.json", lambda r: r["about"].update(format=9)), "has format 9"),
    ],
)
def test_a_bad_bundle_is_one_line_and_exit_code_2(bundle, capsys, spoil, said) -> None:
    spoil(bundle)
    assert main(["doctor", str(bundle)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default", "aten.from_file.out", "image.write_file.default",
        "image.read_file.default", "aten.save.default", "prim.Print.default",
        "os.system.default", "load_library.__func__.x", "nms.a.b",
    ],
)  # fmt: skip
def test_a_step_calls_operators_on_tensors_alone(bundle, capsys, name) -> None:
    assert torchvision.io  # It brings operators that read and write files.
    change(bundle / "step.json", lambda record: first_operator(record).update(name=name))
    assert main(["doctor", str(bundle)]) == 0
    assert f"cannot be run here: ValueError: there is no operator {name}" in capsys.readouterr().err


def test_a_text_without_a_name_may_be_the_name_of_a_file(bundle, capsys) -> None:
    library = torch.library.Library("of_files", "FRAGMENT")
    library.define("write(Tensor _0, str _1) -> Tensor")
    library.impl("write", lambda tensor, path: tensor, "CompositeExplicitAutograd")
    change(bundle / "step.json", lambda record: first_operator(record).update(name=OF_FILES))
    assert main(["doctor", str(bundle)]) == 0
    assert f"there is no operator {OF_FILES}" in capsys.readouterr().err


def test_an_argument_that_is_none_is_not_looked_up(bundle, capsys) -> None:
    change(
        bundle / "step.json",
        lambda record: first_operator(record).update(args=[{"dtype": "hub"}]),
    )
    assert main(["doctor", str(bundle)]) == 0
    assert "{'dtype': 'hub'} is not a valid argument" in capsys.readouterr().err


def test_a_library_that_is_not_there_is_named(capsys, tmp_path) -> None:
    assert main(["doctor", "--import", "not_there", str(tmp_path)]) == 2
    assert "error: --import not_there: No module named 'not_there'" in capsys.readouterr().err


def test_parameters_and_batch_lie_in_the_bundle_by_their_names(bundle) -> None:
    names = {each.name: each for each in read(bundle).recording.given}
    assert {"parameter lift.weight", "buffer norm.running_mean", "batch"} <= set(names)
    tensors = load_file(bundle / "tensors.safetensors")
    weight = tensors[str(names["parameter lift.weight"].number)]
    assert weight.shape == (16, 6)


def test_a_step_that_is_too_large_is_not_written_and_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(recorder, "MOST_BYTES", 100)
    with pytest.raises(
        AssertionError, match="no bundle of step 2 was written: the step needs more than"
    ):
        leave(tmp_path / "bundle", FAULTS[4][0])
    assert not (tmp_path / "bundle").exists()
