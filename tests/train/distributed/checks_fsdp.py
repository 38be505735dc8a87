"""What processes check of the trainer where each holds a part of the model; see `checks`."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import safetensors.torch
import torch
from torch.distributed.checkpoint import FileSystemWriter

from halfstep.engine import full_state_dict
from halfstep.errors import UserError
from halfstep.train.after.evaluate import evaluate
from halfstep.train.after.export import export
from halfstep.train.build import loss
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train
from halfstep.train.loop.saving import CheckpointWriter
from halfstep.train.processes.processes import ALONE
from halfstep.train.run import restore
from halfstep.train.store import checkpoint, rotation

from .checks import CPU, lines

if TYPE_CHECKING:
    from pathlib import Path

FSDP = "distributed.strategy=fsdp"
SYNCHRONIZED = (FSDP, "distributed.sync_batchnorm=true", "checkpoints={every_steps: 3, keep: 9}")
"""Of the tiny config: any number of processes trains it as one does."""


def check_fsdp_run_is_the_ddp_run(processes, given) -> None:
    """With accumulation, clipping, an average, dropout, mixing and a frozen layer."""
    runs = [given.directory / name for name in ("as-ddp", "as-fsdp")]
    saved: list[dict[str, torch.Tensor]] = []
    for run, strategy in zip(runs, ("ddp", "fsdp"), strict=True):
        settings = ("model.freeze=[conv1]", "checkpoints={every_steps: 1, keep: 2}")
        config = given.pictures(*settings, f"distributed.strategy={strategy}")
        with weights_noted(saved):
            train(config, run, quiet=True, processes=processes)
    processes.any(flag=False)  # wait for what the first one writes
    for ours, theirs in zip(lines(runs[1]), lines(runs[0]), strict=True):
        assert (ours.pop("kind"), ours["step"]) == (theirs.pop("kind"), theirs["step"])
        assert ours == pytest.approx(theirs, rel=1e-3)
    if not processes.is_first:
        return
    ddp, fsdp = (checkpoint.load(checkpoint.path(run, "last")) for run in runs)
    assert_near(fsdp.model, ddp.model)
    assert_near(fsdp.averaged, ddp.averaged)
    assert same(fsdp.model, saved[-1]), "what is stored is what was trained"
    for which in ("best", "last"):
        found = evaluate(runs[1], which)
        assert found.matches, (found.measured, found.recorded)
        file = export(runs[1], "safetensors", which=which).file
        stored = checkpoint.load(checkpoint.path(runs[1], which))
        assert same(safetensors.torch.load_file(file), stored.weights)


def check_rotation_keeps_the_parts_that_a_checkpoint_names(processes, given) -> None:
    folder = given.directory / "as-fsdp" / "checkpoints"
    named = [checkpoint.named_parts(file) for file in folder.glob("*.pt")]
    assert len(rotation.newest_first(folder.parent)) == 2, "of six that were written"
    assert {each["directory"] for each in named} == {
        each.name for each in folder.iterdir() if each.is_dir()
    }
    best = checkpoint.path(folder.parent, "best")
    weights = checkpoint.load(best).model
    assert checkpoint.size(best) > best.stat().st_size + sum(
        4 * w.numel() for w in weights.values()
    )
    elsewhere = checkpoint.path(given.directory / f"elsewhere{processes.rank}", "best")
    rotation.link(best, elsewhere)
    assert same(checkpoint.load(elsewhere).model, weights)


def check_damaged_part_costs_what_came_after_the_checkpoint_before(processes, given) -> None:
    for rank, damage in enumerate((flipped, removed)):
        if rank != processes.rank:
            continue
        run = given.directory / damage.__name__
        shutil.copytree(given.directory / "as-fsdp", run)
        newest, before = rotation.newest_first(run)
        named = checkpoint.named_parts(newest)
        damage(newest.with_name(named["directory"]) / "__1_0.distcp")
        with pytest.warns(
            rotation.CheckpointWarning,
            match=rf"__1_0.*continuing from "
            f"{before.name}",
        ):
            found = rotation.newest_whole(run)
        assert found[0] == before


def check_a_checkpoint_that_would_run_code_is_refused(processes, given) -> None:
    """Even with the right checksums."""
    run, witness = given.directory / f"evil{processes.rank}", given.directory / "witness"
    shutil.copytree(given.directory / "as-fsdp", run)
    file = checkpoint.path(run, "last")
    stored = checkpoint.look_into(file)
    metadata = file.with_name(stored.parts["directory"]) / ".metadata"
    metadata.write_bytes(pickle.dumps(Evil(witness)))
    sums = {**stored.parts["sha256"], ".metadata": sha256(metadata.read_bytes()).hexdigest()}
    checkpoint.save(file, replace(stored, parts={**stored.parts, "sha256": sums}))
    assert checkpoint.look_into(file).step == stored.step
    with pytest.raises(UserError, match="is not a checkpoint of halfstep"):
        checkpoint.load(file)
    assert not witness.exists()


class Evil:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


def check_one_process_goes_on_with_what_two_began_and_two_with_that(processes, given) -> None:
    """From parts into a plain process, and from its file into parts."""
    run, back = given.directory / "two", given.directory / "back"
    alone = given.directory / f"one{processes.rank}"
    config = given.tiny("batch_size=128", *SYNCHRONIZED)
    train(config, run, quiet=True, processes=processes)
    processes.any(flag=False)
    begun = str(run / "checkpoints" / "step-00000003.pt")
    train(given.tiny("batch_size=256", *SYNCHRONIZED), alone, quiet=True, go_on=begun)
    # Their sums differ in the last bits, and so do the files' checksums: each takes its own.
    begun = str(alone / "checkpoints" / "step-00000009.pt")
    assert checkpoint.look_into(alone / "checkpoints" / "step-00000009.pt").parts is None
    train(config, back, quiet=True, go_on=begun, processes=processes)
    processes.any(flag=False)
    assert_ends_as(alone, run)
    assert_ends_as(back, run)


def check_four_go_on_with_what_two_began(processes, given) -> None:
    run = given.directory / "four"
    begun = str(given.directory / "two" / "checkpoints" / "step-00000003.pt")
    config = given.tiny("batch_size=64", *SYNCHRONIZED)
    train(config, run, quiet=True, go_on=begun, processes=processes)
    processes.any(flag=False)
    assert_ends_as(run, given.directory / "two")


def check_a_run_goes_back_to_parts_when_a_loss_is_not_finite(processes, given) -> None:
    real, calls = loss.functional.cross_entropy, []

    def failing(*args, **settings):
        calls.append(None)
        loss = real(*args, **settings)
        return loss * float("nan") if processes.rank == 1 and len(calls) == 4 else loss

    run = given.directory / "back-to-parts"
    options = ("on_nonfinite=rollback", "epochs=1", "checkpoints={every_steps: 2}")
    config = given.tiny("batch_size=128", FSDP, *options)
    back: list[dict[str, torch.Tensor]] = []
    saved: list[dict[str, torch.Tensor]] = []
    real_back = restore.roll_back

    def noted(training):
        real_back(training)
        back.append(full_state_dict(training.setup.engine.bare_model))

    with (
        mock.patch.object(loss, "functional", SimpleNamespace(cross_entropy=failing)),
        mock.patch.object(restore, "roll_back", noted),
        weights_noted(saved),
    ):
        summary = train(config, run, quiet=True, processes=processes)
    assert (summary.status, summary.steps, summary.first_nonfinite_step) == ("finished", 6, 4)
    assert summary.skipped_steps == 2, "the one left out, and the one taken back"
    if processes.is_first:
        assert same(back[0], saved[1]), "those of step 2, after those of step 0"


def check_a_part_that_cannot_be_written_ends_no_run(processes, given) -> None:
    real, calls = FileSystemWriter.write_data, []

    def failing(*args):
        calls.append(None)
        if processes.rank == 1 and len(calls) == 1:
            raise OSError("No space left on device")
        return real(*args)

    run = given.directory / "full-disk"
    config = given.tiny("batch_size=128", "checkpoints={every_steps: 3}", "epochs=1", FSDP)
    with (
        mock.patch.object(FileSystemWriter, "write_data", failing),
        mock.patch.object(rotation, "warn") as warned,
    ):
        summary = train(config, run, quiet=True, processes=processes)
    assert (summary.status, summary.steps) == ("finished", 6)
    processes.any(flag=False)
    said = [call.args[0] for call in warned.call_args_list]
    assert len(said) == processes.is_first
    assert all("step 3 could not be saved" in each and "No space left" in each for each in said)
    assert [file.name for file in rotation.newest_first(run)] == ["step-00000006.pt"]
    assert sum(each.is_dir() for each in (run / "checkpoints").iterdir()) == 1


def check_activations_are_computed_again_if_asked_for(processes, given) -> None:
    ddp = "distributed.strategy=ddp"
    for strategy, asked, calls in ((FSDP, False, 1), (FSDP, True, 2), (ddp, True, 2)):
        again = f"model.checkpoint_activations={str(asked).lower()}"
        setup = set_up(given.tiny(strategy, again), CPU, processes=processes)
        with setup.engine as engine:
            seen: list[None] = []
            layer = next(m for m in engine.bare_model.layer2.modules() if hasattr(m, "kernel_size"))
            layer.register_forward_hook(lambda *_, seen=seen: seen.append(None))
            engine.backward(engine.model(torch.ones(2, *setup.task.data.image_shape)).sum())
            engine.zero_grad()
        assert len(seen) == calls


def check_what_fsdp_cannot_do_is_refused(processes, given) -> None:
    for option, said in (
        ("recipe=bf16-kahan", "recipe 'bf16-kahan' .*write recipe=o2"),
        ("optimizer={name: lamb, lr: 0.1}", "optimizer.name is 'lamb'.*allowed: sgd, adam, adamw"),
        ("auto_microbatch=true", "write auto_microbatch=false"),
        ("model.compile=true", "write model.compile=false"),
        ("model.channels_last=true", "write model.channels_last=false"),
        ("probes=true", "write probes=false"),
        (
            "distributed.strategy=dp",
            "write distributed.strategy=ddp, and run halfstep train --gpus N",
        ),
    ):
        config = given.tiny(FSDP, option)
        with pytest.raises(UserError, match=said):
            set_up(config, CPU, processes=processes)
    # A process alone takes no notice of the strategy.
    setup = set_up(given.tiny(FSDP, "model.channels_last=true"), CPU, processes=ALONE)
    setup.engine.close()
    assert not setup.model_is_shared


def weights_noted(saved: list[dict[str, torch.Tensor]]):
    """Note the whole weights whenever a run saves."""
    real = CheckpointWriter.save

    def save(writer, *names, **settings):
        saved.append(full_state_dict(writer._training.setup.engine.bare_model))
        return real(writer, *names, **settings)

    return mock.patch.object(CheckpointWriter, "save", save)


def assert_ends_as(run: Path, whole: Path) -> None:
    ours, theirs = (checkpoint.load(checkpoint.path(each, "last")) for each in (run, whole))
    assert (ours.step, ours.epoch) == (theirs.step, theirs.epoch)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
    assert_near(ours.model, theirs.model)


def assert_near(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-3, msg=name)


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def removed(file: Path) -> None:
    file.unlink()
