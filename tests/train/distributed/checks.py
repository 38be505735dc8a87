"""What two processes check of the trainer; run by `processes.main`.

A check is a function of the processes that raises where something is wrong. What they should come
to is worked out by a single process on the joined batches, which each of them is for the moment.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.build import loss
from halfstep.train.build.setup import set_up
from halfstep.train.config.files import load
from halfstep.train.data import Data
from halfstep.train.data.pipeline.batches import Batches
from halfstep.train.loop import resume
from halfstep.train.loop.loop import train
from halfstep.train.processes.distributed import Lost, joined
from halfstep.train.processes.processes import ALONE, FailedElsewhere, Processes
from halfstep.train.run.microbatch import MicroBatches, MicrobatchWarning
from halfstep.train.run.progress import Progress
from halfstep.train.run.signals import Stopped
from halfstep.train.run.validate import validate
from halfstep.train.store import checkpoint, rotation, snapshot
from halfstep.train.task.in_step import in_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from halfstep.train.config import Config

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Given:
    """Where to work, two configs, a port that is free, and an event."""

    directory: Path
    tiny_file: Path
    pictures_file: Path
    port: int
    left: Any

    def tiny(self, *options: str) -> Config:
        return load(str(self.tiny_file), options)

    def pictures(self, *options: str) -> Config:
        return load(str(self.pictures_file), options)


def first_gradients(
    config: Config, processes: Processes, start: int = 0
) -> tuple[list[torch.Tensor], int]:
    """The gradients of the first window from batch `start` on, and the pieces it was split into."""
    setup, progress = set_up(config, CPU, processes=processes), Progress()
    with setup.engine as engine:
        micro = MicroBatches(engine, config, progress, setup.task, processes)
        grads: list[torch.Tensor] = []

        def noted(*_: object) -> None:
            grads.extend(p.grad.clone() for p in engine.bare_model.parameters())

        engine.optimizer.register_step_pre_hook(noted)
        for portion in engine.batches(in_step(processes, setup.task.data.train, 1, start)):
            if processes.size > 1:
                micro.expect(portion)
            micro.add(*portion.batch)
            engine.step()
            if grads:
                break
        engine.zero_grad()
    return grads, progress.pieces


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max()) + 1e-8
        assert float((one - other).abs().max()) <= 1e-5 * max(1.0, scale), (one, other)


def check_first_gradients_are_those_of_the_joined_batch(processes, given) -> None:
    synchronized = "distributed.sync_batchnorm=true"
    # Of the last batch of an epoch, 67 images come to 34 and 33; 3 are too few for two processes
    # whose BatchNorm is their own, and 2 and 1 where it is not.
    for ours, theirs, start in (
        (["batch_size=128", synchronized], ["batch_size=256"], 0),
        (["batch_size=128", synchronized], ["batch_size=256"], 5),
        (["batch_size=128", synchronized, "accumulate=4"], ["batch_size=256", "accumulate=4"], 4),
        (["batch_size=672"], ["batch_size=1344"], 1),
        (["batch_size=672", synchronized], ["batch_size=1344"], 1),
    ):
        wanted, _ = first_gradients(given.tiny(*theirs), ALONE, start)
        found, _ = first_gradients(given.tiny(*ours), processes, start)
        assert_close(found, wanted)


def check_losses_follow_the_single_process(processes, given) -> None:
    together, alone = given.directory / "together", given.directory / f"alone{processes.rank}"
    train(
        given.tiny("batch_size=128", "distributed.sync_batchnorm=true", "log_every=1"),
        together,
        quiet=True,
        processes=processes,
    )
    train(given.tiny("log_every=1"), alone, quiet=True)
    processes.any(flag=False)  # wait for what the first one writes
    ours, theirs = lines(together), lines(alone)
    assert [(line["kind"], line["step"]) for line in ours] == [
        (line["kind"], line["step"]) for line in theirs
    ]
    for our, their in zip(ours, theirs, strict=True):
        assert our["loss"] == pytest.approx(their["loss"], rel=1e-3), (our, their)
        assert our["accuracy"] == pytest.approx(their["accuracy"], abs=0.01)
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-6)
    summary = json.loads((together / "summary.json").read_text())
    assert (summary["processes"], summary["steps"], summary["epochs"]) == (2, 12, 2)


def check_doctor_says_on_which_rank_a_batch_was_bad(processes, given) -> None:
    real = Data.prepare

    def prepare(self, images, labels, *, number=0, **rest):
        images, labels = real(self, images, labels, number=number, **rest)
        if number == 2 * processes.size + 1:  # the third batch of rank 1
            images[3, 0, 2, 1] = float("nan")
        return images, labels

    # Under FSDP nothing can be replayed, and the batch itself is still at hand.
    for strategy in ("ddp", "fsdp"):
        run = given.directory / f"bad-batch-{strategy}"
        options = ("doctor=true", f"distributed.strategy={strategy}", "epochs=1", "log_every=1")
        config = given.tiny(*options)
        with mock.patch.object(Data, "prepare", prepare):
            train(config, run, quiet=True, processes=processes)
        processes.any(flag=False)  # wait for what the first one writes
        found = json.loads((run / "diagnosis.json").read_text(encoding="utf-8"))
        assert found["rank"] == 1, found["diagnosis"]
        assert [each["code"] for each in found["diagnosis"]["verdicts"]] == ["CORRUPT_BATCH"]
        assert found["evidence"]["inputs"][0]["index"] == [3, 0, 2, 1]
        text = (run / "diagnosis.txt").read_text(encoding="utf-8")
        assert text.startswith("of rank 1 of 2:\n")


def check_validation_is_of_every_image_once(processes, given) -> None:
    """450 images in batches of 128 come to two batches on each process, the last one smaller."""
    # 449 leaves a batch of one image, which one process has. Under FSDP the other must take part.
    for size, strategy in ((64, "ddp"), (449, "ddp"), (449, "fsdp")):
        config = given.tiny(f"batch_size={size}", f"distributed.strategy={strategy}")
        setup = set_up(config, CPU, processes=processes)
        single = set_up(given.tiny("batch_size=64"), CPU)
        with setup.engine, single.engine:
            ours, theirs = validate(setup), validate(single)
        assert torch.equal(ours.confusion, theirs.confusion)
        assert (ours.accuracy, ours.top5) == (theirs.accuracy, theirs.top5)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)


def check_a_signal_to_one_stops_all_and_a_resume_leaves_no_trace(processes, given) -> None:
    """A window that is open then is averaged early, so that it is as before but for rounding.

    What is stopped writes in the background, also beside what the processes tell each other.
    """
    in_background = mock.patch.object(snapshot, "LEAST_BYTES", 0)
    for strategy, accumulate, tolerance in (("ddp", 1, 0.0), ("ddp", 2, 1e-3), ("fsdp", 1, 0.0)):
        settings = (f"accumulate={accumulate}", f"distributed.strategy={strategy}", "epochs=2")
        config = given.pictures(*settings)
        whole, stopped = (
            given.directory / f"{name}-{strategy}{accumulate}" for name in ("whole", "stopped")
        )
        train(config, whole, quiet=True, processes=processes)
        by_the_second = signalled(1, by=processes.rank == 1)
        with in_background, by_the_second, pytest.raises(Stopped) as caught:
            train(config, stopped, quiet=True, processes=processes)
        assert caught.value.number == signal.SIGTERM
        processes.any(flag=False)  # wait for what the first one writes
        newest = rotation.newest_whole(stopped)
        assert newest is not None
        assert (newest[1].epoch, newest[1].batch) == (0, 1), "in the middle of the first epoch"
        with in_background:
            train(config, stopped, quiet=True, go_on="auto", processes=processes)
        processes.any(flag=False)
        for our, their in zip(lines(stopped), lines(whole), strict=True):
            assert our.pop("kind") == their.pop("kind")
            assert our == pytest.approx(their, rel=tolerance, abs=tolerance)
        one, two = (checkpoint.load(checkpoint.path(run, "last")) for run in (whole, stopped))
        assert len(one.others) == 1
        for field in ("model", "averaged"):
            first, second = getattr(one, field), getattr(two, field)
            for name in first:
                torch.testing.assert_close(second[name], first[name], rtol=0, atol=tolerance)


def check_another_number_of_processes_goes_on_with_the_same_batches(processes, given) -> None:
    run = given.directory / "whole-ddp2"
    file = next((run / "checkpoints").glob("step-*.pt"))
    start = resume.find(run, str(file), given.pictures("batch_size=8", "epochs=2"), 1)
    assert start is not None
    with pytest.raises(UserError, match=r"2 processes with batch_size=4.*write batch_size=8 for 1"):
        resume.find(run, str(file), given.pictures("epochs=2"), 1)
    alone = given.directory / f"goes-on{processes.rank}"
    summary = train(given.pictures("batch_size=8", "epochs=2"), alone, quiet=True, go_on=str(file))
    assert (summary.status, summary.epochs, summary.processes) == ("finished", 2, 1)


def check_all_split_when_memory_fails_one(processes, given) -> None:
    # A model without BatchNorm, which would see the pieces.
    args = "{img_size: 8, patch_size: 4, embed_dim: 8, depth: 1, num_heads: 2}"
    model = f"model={{name: 'timm:vit_tiny_patch16_224', args: {args}}}"
    real, calls = loss.functional.cross_entropy, []

    def failing(*args, **settings):
        calls.append(None)
        if processes.rank == 1 and len(calls) == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(*args, **settings)

    wanted, _ = first_gradients(given.tiny(model, "batch_size=256"), ALONE)
    config = given.tiny(model, "batch_size=128", "auto_microbatch=true")
    with (
        mock.patch.object(loss, "functional", SimpleNamespace(cross_entropy=failing)),
        pytest.warns(MicrobatchWarning, match="continuing with 64 at a time"),
    ):
        found, pieces = first_gradients(config, processes)
    assert pieces == 2
    assert_close(found, wanted)


def check_a_loss_that_is_not_finite_is_left_out_everywhere(processes, given) -> None:
    real, calls = loss.functional.cross_entropy, []

    def failing(*args, **settings):
        calls.append(None)
        loss = real(*args, **settings)
        return loss * float("nan") if processes.rank == 1 and len(calls) == 2 else loss

    run = given.directory / "skips"
    config = given.tiny("batch_size=128", "on_nonfinite=skip", "epochs=1", "log_every=1")
    with mock.patch.object(loss, "functional", SimpleNamespace(cross_entropy=failing)):
        summary = train(config, run, quiet=True, processes=processes)
    assert (summary.status, summary.skipped_steps, summary.steps) == ("finished", 1, 6)
    assert summary.first_nonfinite_step == 2


def check_an_error_of_one_ends_all_and_is_said_once(processes, given) -> None:
    real = Batches.epoch

    def failing(self, number=1, start=0):
        for place, batch in enumerate(real(self, number, start)):
            if place == 2:
                raise UserError("the disk is gone")
            yield batch

    mine = processes.rank == 1
    with mock.patch.object(Batches, "epoch", failing if mine else real):
        expected = (UserError, "the disk is gone") if mine else (FailedElsewhere, "another process")
        with pytest.raises(expected[0], match=expected[1]) as caught:
            train(given.tiny("batch_size=128"), given.directory / "fails", quiet=True,
                  processes=processes)  # fmt: skip
    assert mine or caught.value.code == 2


def check_what_cannot_work_in_several_processes_is_refused(processes, given) -> None:
    for option, said in (
        ("probes=true", "write probes=false"),
        ("auto_microbatch=true", "auto_microbatch=false or distributed.sync_batchnorm=false"),
    ):
        config = given.tiny(option, "distributed.sync_batchnorm=true")
        with pytest.raises(UserError, match=said):
            set_up(config, CPU, processes=processes)
        set_up(config, CPU).engine.close()


def a_rank_that_hangs_is_named(rank: int, given: Given) -> None:
    os.environ["MASTER_PORT"] = str(given.port)
    if rank == 0:
        try:
            with pytest.raises(Lost, match=r"^rank 1 \(.+\) did not answer for 1 s"):
                _speak_twice(1)
        finally:
            given.left.set()
    else:
        with pytest.raises(Lost):
            _speak_twice(60, given.left.wait)


def _speak_twice(timeout: float, between: Callable[[], object] = lambda: None) -> None:
    with joined("cpu", timeout) as processes:
        processes.numbers([1])
        between()
        processes.numbers([2])


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in found]


def signalled(count: int, *, by: bool):
    """Let one process get a SIGTERM in a micro-batch."""
    real, calls = MicroBatches.add, []

    def add(self, *batch):
        calls.append(None)
        if by and len(calls) == count:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *batch)

    return mock.patch.object(MicroBatches, "add", add)
