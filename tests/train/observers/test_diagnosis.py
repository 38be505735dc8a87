"""Doctor in every run: what a run that went wrong leaves, and that it learns the same watched."""

from __future__ import annotations

import hashlib
import io
import json
import math
from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

from halfstep import step_observer
from halfstep.cli import main
from halfstep.doctor import Watch
from halfstep.doctor.verdict import Diagnosis, Finding, Verdict
from halfstep.errors import UserError
from halfstep.step_observer import StepObserver
from halfstep.train.after.reexamine import explain
from halfstep.train.data import Data
from halfstep.train.loop.loop import train
from halfstep.train.observers import diagnosis
from halfstep.train.run.microbatch import MicroBatches
from halfstep.train.store import checkpoint, diagnosis_file

RECIPES = ("fp32", "bf16", "fp16", "o2", "half", "bf16-sr", "fp8")
DIVERGES = ("optimizer.lr=1e6", "schedule.name=constant", "optimizer.momentum=0")


@pytest.fixture(scope="module")
def small(tiny):
    """Load the small config with doctor, as it is by default."""
    return lambda *options, **flags: tiny("doctor=true", *options, **flags)


@pytest.fixture
def poison(monkeypatch):
    """Make an image of training batches (epoch, number) inf at a place."""

    def poisoned(*places):
        real = Data.prepare

        def prepare(self, images, labels, *, train, epoch=1, number=0, **rest):
            images, labels = real(
                self, images, labels, train=train, epoch=epoch, number=number, **rest
            )
            if train and (epoch, number) in places:
                images = images.clone()
                images[3, 0, 2, 1] = math.inf
            return images, labels

        monkeypatch.setattr(Data, "prepare", prepare)

    return poisoned


def verdicts(run) -> list[str]:
    return [each["code"] for each in json.loads(read(run))["diagnosis"]["verdicts"]]


def read(run) -> str:
    return (run / "diagnosis.json").read_text(encoding="utf-8")


def figures(run) -> list[dict]:
    kept = ("kind", "step", "loss", "accuracy", "lr", "loss_scale", "grad_norm", "val_loss")
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: line.get(name) for name in kept} for line in lines]


def state(run) -> dict[str, str]:
    return {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(run.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def diverged(small, tmp_path_factory):
    run = tmp_path_factory.mktemp("diagnosis") / "run"
    train(small(*DIVERGES, "log_every=1"), run, quiet=True)
    return run


def test_a_run_that_diverges_says_so_in_its_directory(diverged) -> None:
    assert verdicts(diverged) == ["LEARNING_RATE_TOO_HIGH"]
    text = (diverged / "diagnosis.txt").read_text(encoding="utf-8")
    assert text.startswith("doctor: training diverged  LEARNING_RATE_TOO_HIGH")
    assert len(text.splitlines()) <= 24
    assert diagnosis_file.in_a_line(diverged).startswith(
        "LEARNING_RATE_TOO_HIGH: at a learning rate of"
    )


def test_what_a_run_has_left_is_printed_again(diverged, capsys) -> None:
    before = state(diverged)
    assert main(["doctor", str(diverged)]) == 0
    printed = capsys.readouterr().out
    assert printed == (diverged / "diagnosis.txt").read_text(encoding="utf-8")
    assert state(diverged) == before


def test_train_prints_the_verdict_behind_its_error(tiny_file, tmp_path, capsys) -> None:
    options = ["--options", *DIVERGES, "log_every=1", "doctor=true"]
    arguments = ["train", str(tiny_file), "--out", str(tmp_path / "run"), "--quiet", *options]
    assert main(arguments) == 1
    error, *rest = capsys.readouterr().err.splitlines()
    assert error.startswith("nonfinite: ")
    assert rest == (tmp_path / "run" / "diagnosis.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("recipe", ["fp32", "fp16"])
def test_the_step_that_went_bad_lies_in_the_run_and_runs_again_from_there(
    small, tmp_path, poison, capsys, recipe
) -> None:
    poison((1, 2))
    run = tmp_path / "run"
    train(small("on_nonfinite=skip", "log_every=1", "epochs=1", recipe=recipe), run, quiet=True)
    bundle = run / "bundle"
    assert diagnosis_file.bundles(run) == [bundle]
    said = (run / "diagnosis.txt").read_text(encoding="utf-8").splitlines()
    assert said[-1] == f"halfstep doctor {bundle} repeats the step, also on another machine"
    assert main(["doctor", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == said
    elsewhere = bundle.rename(tmp_path / "copied")
    assert main(["doctor", str(elsewhere)]) == 0
    again = capsys.readouterr().err
    assert "CORRUPT_BATCH" in again
    assert "step 2 repeats here with the same bits" in again


def test_a_run_that_goes_well_keeps_no_step_though_one_was_looked_at(small, tmp_path) -> None:
    # The first steps are skipped, until doctor looks at one of them and writes it down.
    recipe = {"base": "fp16", "loss_scale": {"init": 2.0**24}}
    run = tmp_path / "run"
    summary = train(small("epochs=2", "batch_size=64", recipe=recipe), run, quiet=True)
    assert summary.status == "finished"
    assert summary.skipped_steps >= 4
    assert not [each for each in run.iterdir() if "bundle" in each.name]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_learns_the_same_bits_with_and_without_a_watch(small, tmp_path, recipe) -> None:
    short = ("max_steps=4", "log_every=1", "accumulate=2", "clip_norm=1.0", "batch_size=64")
    runs = {watched: tmp_path / watched for watched in ("true", "false")}
    for watched, run in runs.items():
        train(small(*short, f"doctor={watched}", recipe=recipe), run, quiet=True)
        assert not diagnosis_file.files(run)
    assert figures(runs["true"]) == figures(runs["false"])
    first, second = (checkpoint.load(checkpoint.path(run, "last")) for run in runs.values())
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)


@pytest.mark.parametrize("what", ["stop", "skip"])
def test_a_bad_batch_is_named(small, tmp_path, poison, what) -> None:
    poison((1, 6))
    options = (f"on_nonfinite={what}", "log_every=1", "epochs=1", "batch_size=16")
    train(small(*options), tmp_path / "run", quiet=True)
    assert verdicts(tmp_path / "run") == ["CORRUPT_BATCH"]
    bad = json.loads(read(tmp_path / "run"))["evidence"]["inputs"][0]
    assert (bad["index"], bad["iteration"]) == ([3, 0, 2, 1], 6)
    assert (tmp_path / "run" / "bundle").is_dir()


@pytest.fixture
def _compiled_without_a_compiler(monkeypatch):
    def compiled(model):
        model.compile(backend="aot_eager")
        return model

    monkeypatch.setattr("halfstep.train.build.models.compiled", compiled)
    monkeypatch.setattr("halfstep.train.build.compiling.PAYS_FROM", 0)


@pytest.mark.usefixtures("_compiled_without_a_compiler")
@pytest.mark.parametrize("recipe", ["fp16", pytest.param("o2", marks=pytest.mark.slow)])
def test_a_compiled_run_learns_the_same_bits_with_and_without_a_watch(
    small, tmp_path, recipe
) -> None:
    short = ("model.compile=true", "max_steps=4", "epochs=1", "log_every=1", "batch_size=64")
    for watched in ("true", "false"):
        torch._dynamo.reset()
        config = small(*short, f"doctor={watched}", recipe=recipe)
        train(config, tmp_path / watched, quiet=True)
        assert not diagnosis_file.files(tmp_path / watched)
    assert figures(tmp_path / "true") == figures(tmp_path / "false")


@pytest.mark.usefixtures("_compiled_without_a_compiler")
def test_a_bad_batch_of_a_compiled_run_is_named(small, tmp_path, poison) -> None:
    poison((1, 2))
    torch._dynamo.reset()
    train(small("model.compile=true", "log_every=1", "epochs=1"), tmp_path / "run", quiet=True)
    assert verdicts(tmp_path / "run") == ["CORRUPT_BATCH"]


def test_what_is_seen_of_a_healthy_run_raises_no_alarm(pictures, tmp_path) -> None:
    for recipe in ("fp16", "o2"):
        with Watch() as watch:
            train(pictures("doctor=true", "epochs=1", recipe=recipe), tmp_path / recipe, quiet=True)
        assert not watch.troubles, watch.troubles[0]
        from halfstep.doctor import diagnose

        assert [each.code for each in diagnose(watch.close()).verdicts] == []


def test_a_run_that_is_watched_already_leaves_that_to_its_watcher(small, tmp_path) -> None:
    with Watch() as watch:
        train(small(*DIVERGES, "log_every=1"), tmp_path / "run", quiet=True)
    assert not diagnosis_file.files(tmp_path / "run")
    assert watch.close().numbers.first_bad is not None


@pytest.mark.parametrize("what", ["skip", "rollback"])
def test_a_batch_that_was_left_out_is_named_though_the_run_goes_on(
    small, tmp_path, poison, what
) -> None:
    poison((1, 2))
    options = (f"on_nonfinite={what}", "log_every=1", "epochs=1")
    summary = train(small(*options), tmp_path / "run", quiet=True)
    assert summary.status == "finished"
    assert verdicts(tmp_path / "run") == ["CORRUPT_BATCH"]
    bad = json.loads(read(tmp_path / "run"))["evidence"]["inputs"][0]
    assert (bad["index"], bad["iteration"], bad["kind"]) == ([3, 0, 2, 1], 2, "inf")


def test_train_says_of_a_finished_run_that_a_loss_was_not_finite(
    tiny_file, tmp_path, poison, capsys
) -> None:
    poison((1, 2))
    options = ["--options", "doctor=true", "on_nonfinite=skip", "log_every=1", "epochs=1"]
    run = str(tmp_path / "run")
    assert main(["train", str(tiny_file), "--out", run, "--quiet", *options]) == 0
    said = capsys.readouterr().err.strip()
    assert said.startswith("the loss was not finite at step 3, and training went on; CORRUPT_BATCH")
    assert said.endswith(f"(halfstep doctor {run} says more)")


def test_an_exception_in_a_step_leaves_what_was_seen_of_it(
    small, tmp_path, monkeypatch, capsys
) -> None:
    real = MicroBatches.add

    def piece(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("value cannot be converted to type at::Half without overflow")
        return real(self, *args)

    calls: list[int] = []
    monkeypatch.setattr(MicroBatches, "add", piece)
    with pytest.raises(RuntimeError, match="without overflow"):
        train(small("epochs=1"), tmp_path / "run", quiet=True)
    ending = json.loads(read(tmp_path / "run"))["evidence"]["ending"]
    assert ending["kind"] == "RuntimeError"
    assert capsys.readouterr().err == (tmp_path / "run" / "diagnosis.txt").read_text()
    assert type(step_observer.active) is step_observer.StepObserver


def test_a_bad_config_or_a_full_memory_leaves_no_diagnosis(small, tmp_path, monkeypatch) -> None:
    def run_out(*_):
        raise torch.OutOfMemoryError("can't allocate memory")

    monkeypatch.setattr(MicroBatches, "add", run_out)
    with pytest.raises(UserError, match="there is not enough memory"):
        train(small("epochs=1"), tmp_path / "run", quiet=True)
    assert not diagnosis_file.files(tmp_path / "run")


def test_a_run_without_a_diagnosis_is_trained_again_from_before_its_failure(
    small, tmp_path, poison
) -> None:
    run = tmp_path / "run"
    poison((2, 1))
    options = ("log_every=1", "doctor=false", "checkpoints={every_steps: 2, keep: 5}")
    summary = train(small(*options), run, quiet=True)
    assert summary.first_nonfinite_step == 8
    assert not diagnosis_file.files(run)
    before, said = state(run), io.StringIO()
    explain(run, said, report=tmp_path / "report")
    first, *rest = said.getvalue().splitlines()
    assert "from step-00000006.pt" in first
    assert rest[0].startswith("doctor: inf or NaN in the data  CORRUPT_BATCH")
    assert rest[-2] == "these steps are counted from step 6 of the run"
    bundle = tmp_path / "report" / "bundle"
    assert rest[-1] == f"halfstep doctor {bundle} repeats the step, also on another machine"
    assert (bundle / "step.json").is_file()
    assert verdicts(tmp_path / "report") == ["CORRUPT_BATCH"]
    assert state(run) == before


def test_a_run_that_was_killed_before_its_first_checkpoint_is_trained_again_from_its_beginning(
    small, tmp_path
) -> None:
    run = tmp_path / "run"
    train(small(*DIVERGES, "log_every=1", "doctor=false"), run, quiet=True)
    (run / "summary.json").unlink()
    said = io.StringIO()
    explain(run, said)
    assert "from its beginning" in said.getvalue()
    assert "LEARNING_RATE_TOO_HIGH" in said.getvalue()


def test_a_run_that_goes_well_has_nothing_to_explain(finished_run, capsys) -> None:
    assert main(["doctor", str(finished_run)]) == 2
    assert "has finished, and every loss was finite" in capsys.readouterr().err


def test_a_run_that_starts_again_forgets_what_went_wrong_before(small, diverged, tmp_path) -> None:
    run = tmp_path / "run"
    train(small(*DIVERGES, "log_every=1"), run, quiet=True)
    assert diagnosis_file.files(run)
    train(small("epochs=1"), run, overwrite=True, quiet=True)
    assert not diagnosis_file.files(run)


def test_a_damaged_diagnosis_is_refused_in_a_line(tmp_path) -> None:
    (tmp_path / "diagnosis.json").write_text('{"diagnosis": {}, "evidence": {"numbers": 3}}')
    with pytest.raises(UserError, match="of another version of halfstep"):
        diagnosis.read(tmp_path)
    (tmp_path / "diagnosis.json").write_text("[]")
    with pytest.raises(UserError, match="holds no diagnosis"):
        diagnosis.read(tmp_path)
    assert diagnosis_file.in_a_line(tmp_path) is None


def test_of_several_processes_the_surest_one_is_shown_with_its_rank(diverged) -> None:
    report = diagnosis.read(diverged)

    def of_rank(rank: int, *confidences: str) -> diagnosis.Report:
        found = tuple(
            Verdict("CODE", "a cause", (1,), (), Finding("it broke", (), (), confidence=each))
            for each in confidences
        )
        return diagnosis.Report(rank, 3, 0, Diagnosis(found), report.evidence)

    reports = [of_rank(0), of_rank(1, "likely"), of_rank(2, "certain")]
    shown = min(reports, key=lambda each: each.weight)
    assert shown.rank == 2
    text = io.StringIO()
    shown.show(text)
    assert text.getvalue().startswith("of rank 2 of 3:\n")
    assert min([of_rank(1), of_rank(0)], key=lambda each: each.weight).rank == 0


class _Ears(TorchFunctionMode):
    """Notes each call of torch outside of `aside`, as a watch does."""

    def __init__(self):
        super().__init__()
        self.heard = set()
        self.rests = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not self.rests:
            self.heard.add(func.__name__)
        return func(*args, **(kwargs or {}))


class _Listens(StepObserver):
    listens = True

    def __init__(self, ears):
        self.ears = ears

    @contextmanager
    def aside(self):
        self.ears.rests += 1
        yield
        self.ears.rests -= 1


def test_doctor_does_not_hear_what_a_run_measures_of_itself(small, tmp_path):
    ears = _Ears()
    restore = step_observer.observe(_Listens(ears))
    try:
        with ears:
            options = ("epochs=1", "probes=true", "doctor=false")
            train(small(*options), tmp_path / "run", quiet=True)
    finally:
        restore()
    assert "conv2d" in ears.heard
    # Of the metrics, the confusion matrix, the probe's comparison, and the copy of a checkpoint.
    assert not ears.heard & {"topk", "bincount", "vector_norm", "cosine_similarity", "is_conj"}
