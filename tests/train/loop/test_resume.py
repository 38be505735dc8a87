"""Runs that are killed anywhere and go on end exactly where an uninterrupted one ends."""

import shutil
import warnings
from dataclasses import asdict, replace

import pytest
import torch
from sameness import assert_same_run, lines, same

from halfstep.errors import UserError
from halfstep.train.loop import resume
from halfstep.train.loop.loop import train
from halfstep.train.run.microbatch import MicroBatches
from halfstep.train.store import checkpoint, rotation
from halfstep.train.store.rotation import CheckpointWarning
from halfstep.train.store.run_directory import read_summary

RECIPES = ("fp32", "fp16", "o2")


class Killed(BaseException):
    """What no code catches, as SIGKILL."""


@pytest.fixture
def killed_after(monkeypatch):
    """Train, and die in the middle of a micro-batch; what is left is what is on the disk."""

    def start(config, run, micro_batches, **options):
        real, done = MicroBatches.add, []

        def add(self, images, labels):
            if len(done) == micro_batches:
                raise Killed
            done.append(None)
            return real(self, images, labels)

        with monkeypatch.context() as patch:
            patch.setattr(MicroBatches, "add", add)
            with pytest.raises(Killed):
                train(config, run, quiet=True, **options)

    return start


@pytest.fixture(scope="module")
def uninterrupted(pictures, tmp_path_factory):
    runs = {}

    def run(recipe):
        if recipe not in runs:
            runs[recipe] = tmp_path_factory.mktemp("whole") / recipe
            train(pictures(recipe=recipe), runs[recipe], quiet=True)
        return runs[recipe]

    return run


@pytest.mark.parametrize("recipe", RECIPES)
def test_run_killed_twice_ends_as_one_that_was_not(
    pictures, uninterrupted, killed_after, tmp_path, recipe
):
    config = pictures("doctor=true", recipe=recipe)  # the other run has no watch
    # In the middle of a window of the first epoch, then in the second; between two log lines.
    killed_after(config, tmp_path, 5)
    torch.manual_seed(1234)  # another process is in another state
    killed_after(config, tmp_path, 6, go_on="auto")
    train(config, tmp_path, quiet=True, go_on="auto")
    assert_same_run(tmp_path, uninterrupted(recipe))


@pytest.mark.parametrize(
    "before",
    [{"train_seconds": 500.0, "wall_seconds": 1000.0}, {"train_seconds": 1000.0}],
    ids=["of this release", "of 0.1.0, which did not save the second"],
)
def test_the_time_of_a_run_is_the_sum_over_its_parts(pictures, killed_after, tmp_path, before):
    killed_after(pictures(), tmp_path, 5)
    newest = rotation.newest_first(tmp_path)[0]
    stored = checkpoint.load(newest)
    progress = {k: v for k, v in stored.progress.items() if k != "wall_seconds"}
    checkpoint.save(newest, replace(stored, progress=progress | before))
    summary = train(pictures(), tmp_path, quiet=True, go_on="auto")
    assert 0 < summary.wall_seconds - 1000 < 500
    assert before["train_seconds"] < summary.train_seconds <= summary.wall_seconds


@pytest.mark.parametrize("optimizer", ["adamw, state: bf16", "sgd, state: bf16", "adamw8bit"])
def test_small_optimizer_state_goes_on_as_if_it_had_not_been_killed(
    pictures, killed_after, tmp_path, optimizer
):
    if "8bit" in optimizer:
        pytest.importorskip("torchao", reason="needs torchao")
    config = pictures(
        *("epochs=1", "recipe=o2", f"optimizer={{name: {optimizer}}}", "schedule={name: cosine}"),
        "model.args={channels: [8, 32, 32, 32]}",  # large enough for few bits
    )
    train(config, tmp_path / "whole", quiet=True)
    killed_after(config, tmp_path / "killed", 5)
    train(config, tmp_path / "killed", quiet=True, go_on="auto")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_run_killed_before_its_first_checkpoint_starts_anew(
    pictures, uninterrupted, killed_after, tmp_path
):
    killed_after(pictures(), tmp_path, 1)
    train(pictures(), tmp_path, quiet=True, go_on="auto")
    assert_same_run(tmp_path, uninterrupted("fp32"))


def test_auto_in_an_empty_directory_starts_anew(pictures, uninterrupted, tmp_path):
    train(pictures(), tmp_path / "new", quiet=True, go_on="auto")
    assert_same_run(tmp_path / "new", uninterrupted("fp32"))


def test_finished_run_goes_on_to_nothing_new(pictures, uninterrupted, tmp_path):
    run = shutil.copytree(uninterrupted("fp32"), tmp_path / "run")
    measured = (run / "summary.json").read_bytes()
    summary = train(pictures(), run, quiet=True, go_on="auto")
    assert asdict(summary) == read_summary(run)
    assert (run / "summary.json").read_bytes() == measured, "times and memory are those of the run"
    assert_same_run(run, uninterrupted("fp32"))


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty"])
def test_damaged_newest_checkpoint_costs_only_what_came_after_the_one_before(
    pictures, uninterrupted, killed_after, tmp_path, damage
):
    killed_after(pictures(), tmp_path, 15)
    newest, before, *_ = rotation.newest_first(tmp_path)
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    newest.write_bytes({"torn": content[: len(content) // 2], "empty": b""}.get(damage, content))
    with pytest.warns(CheckpointWarning, match=f"{newest.name}.*continuing from {before.name}"):
        train(pictures(), tmp_path, quiet=True, go_on="auto")
    assert_same_run(tmp_path, uninterrupted("fp32"))


def test_all_checkpoints_damaged_is_an_error_that_names_the_newest(
    pictures, killed_after, tmp_path
):
    killed_after(pictures(), tmp_path, 15)
    files = rotation.newest_first(tmp_path)
    for file in files:
        file.write_bytes(b"x")
    with pytest.raises(UserError, match=f"no checkpoint of .* is complete; .*{files[0].name}"):
        train(pictures(), tmp_path, quiet=True, go_on="auto")


def test_path_goes_on_from_that_checkpoint_in_place_or_elsewhere(pictures, uninterrupted, tmp_path):
    run = shutil.copytree(uninterrupted("fp32"), tmp_path / "run")
    oldest = rotation.newest_first(run)[-1]
    first = checkpoint.load(oldest).step
    train(pictures(), tmp_path / "other", quiet=True, go_on=str(oldest))
    assert lines(tmp_path / "other")[0]["step"] > first
    train(pictures(), run, quiet=True, go_on=str(oldest))
    assert_same_run(run, uninterrupted("fp32"))
    for name in ("last", "best"):
        one, two = (
            checkpoint.load(checkpoint.path(each, name)) for each in (run, tmp_path / "other")
        )
        assert same(one.model, two.model)


def test_wrong_paths_and_other_configs_are_refused_before_anything_is_written(
    pictures, uninterrupted, tmp_path
):
    run = tmp_path / "run"
    for wanted, said in (
        ("nowhere", "--resume is 'nowhere', which does not exist; allowed: auto"),
        (str(tmp_path), "holds no checkpoint to resume from"),
        (str(uninterrupted("fp32") / "config.yaml"), "is damaged or not a checkpoint of halfstep"),
    ):
        with pytest.raises(UserError, match=said):
            train(pictures(), run, quiet=True, go_on=wanted)
    with pytest.raises(UserError, match=r"made with optimizer\.lr=0\.01, and the config says 0\.5"):
        train(pictures("optimizer.lr=0.5"), run, quiet=True, go_on=str(uninterrupted("fp32")))
    assert not run.exists()
    # What does not change the result may differ.
    harmless = "log_every=1", "data.workers=1", "model.checkpoint_activations=true"
    assert resume.find(run, str(uninterrupted("fp32")), pictures(*harmless))


def test_half_a_line_and_lines_after_the_checkpoint_go(pictures, killed_after, tmp_path):
    killed_after(pictures(), tmp_path, 11)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 6, "epoch": 2}\n{"kind": "tra')
    left = tmp_path / "checkpoints" / ".step-00000004.pt.0123.tmp"
    left.touch()
    train(pictures(), tmp_path, quiet=True, go_on="auto")
    assert [(line["kind"], line["step"]) for line in lines(tmp_path)] == [
        (kind, step) for step in (3, 6, 9) for kind in ("train", "val")
    ]
    assert not left.exists()


def test_kill_between_a_checkpoint_and_its_names_is_made_good(
    pictures, uninterrupted, tmp_path, monkeypatch
):
    def die(file, to):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(rotation, "link", die)
        with pytest.raises(Killed):
            train(pictures(), tmp_path, quiet=True)
    assert not checkpoint.path(tmp_path, "last").exists()
    start = resume.find(tmp_path, "auto", pictures())
    resume.tidy(tmp_path, start)
    assert checkpoint.load(checkpoint.path(tmp_path, "last")).epoch == 1
    train(pictures(), tmp_path, quiet=True, go_on="auto")
    assert_same_run(tmp_path, uninterrupted("fp32"))


def test_workers_change_nothing(pictures, uninterrupted, killed_after, tmp_path):
    config = pictures("data.workers=2")
    killed_after(config, tmp_path, 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        train(config, tmp_path, quiet=True, go_on="auto")
    assert_same_run(tmp_path, uninterrupted("fp32"))


@pytest.mark.parametrize("here", [True, False])
def test_a_death_before_the_next_checkpoint_loses_nothing_of_what_was_gone_on_from(
    pictures, killed_after, tmp_path, here
):
    """A restart goes on with "auto", whatever the first start was told to go on from."""
    config = pictures()
    train(config, tmp_path / "first", quiet=True)
    best = checkpoint.path(tmp_path / "first", "best")
    steps = rotation.newest_first(tmp_path / "first")
    shutil.copy(steps[-1], best)  # from before the end, so that there is more to train
    for file in steps:
        file.unlink()  # as rotation would have, in the end
    run = tmp_path / ("first" if here else "second")
    shutil.copy(best, tmp_path / "asked-for.pt")
    wanted = best if here else tmp_path / "asked-for.pt"
    step = checkpoint.load(wanted).step
    killed_after(config, run, 0, go_on=str(wanted))
    assert rotation.newest_whole(run)[1].step == step


STEP = "schedule={name: step, every_epochs: 0.7, gamma: 0.5, warmup_epochs: 0.4}"


@pytest.mark.parametrize(
    "schedule",
    [
        STEP,
        "schedule={name: plateau, patience: 0, threshold: 0.5}",
        "schedule={name: constant, warmup_epochs: 0.5}",
    ],
    ids=["step", "plateau", "constant"],
)
def test_finished_run_that_goes_on_to_more_epochs_ends_as_one_that_had_them(
    pictures, tmp_path, schedule
):
    train(pictures(schedule, "epochs=3"), tmp_path / "whole", quiet=True)
    run = tmp_path / "run"
    train(pictures(schedule, "epochs=1"), run, quiet=True)
    assert read_summary(run)["epochs"] == 1
    train(pictures(schedule, "epochs=3"), run, quiet=True, go_on="auto")
    assert read_summary(run)["epochs"] == 3
    # The best one may be of the first epoch, when the schedule knew of fewer drops.
    assert_same_run(run, tmp_path / "whole", of_best=("model", "averaged"))
    finished = (run / "summary.json").read_bytes()
    train(pictures(schedule, "epochs=3"), run, quiet=True, go_on="auto")
    assert (run / "summary.json").read_bytes() == finished


def test_unfinished_run_goes_on_to_more_or_fewer_epochs(pictures, killed_after, tmp_path):
    train(pictures(STEP, "epochs=2"), tmp_path / "whole", quiet=True)
    for epochs in (3, 1):
        run = tmp_path / f"from {epochs}"
        killed_after(pictures(STEP, f"epochs={epochs}"), run, 5)
        train(pictures(STEP, "epochs=2"), run, quiet=True, go_on="auto")
        assert_same_run(run, tmp_path / "whole", of_best=("model", "averaged"))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ([], ["epochs=3"], r"schedule one-cycle is laid out .* model.weights=.*last.pt epochs=2 "),
        (["schedule={name: cosine}"], ["epochs=3"], "schedule cosine is laid out over all epochs"),
        (["schedule={name: step, warmup: 0.1}"], ["epochs=3"], "schedule.warmup=0.1 is a share"),
        (["schedule={name: step, warmup_epochs: 2}"], ["epochs=3"], "warmup_epochs=2 is cut off"),
        ([STEP, "max_steps=2"], ["epochs=3"], "was ended by max_steps=2, so more epochs would"),
        (
            [STEP, "epochs=4", "early_stopping={patience: 1}", "optimizer.lr=1e-9"],
            ["epochs=5"],
            "was stopped early after 2, so more epochs would change nothing; write .* epochs=4",
        ),
        ([STEP, "epochs=2"], ["epochs=1"], "has finished 2, and the config says 1; write .*=3"),
    ],
    ids=["one-cycle", "cosine", "share", "endless", "max_steps", "stopped", "fewer"],
)
@pytest.mark.filterwarnings("ignore:schedule.warmup_epochs is 2")
def test_what_would_not_be_such_a_run_is_refused_and_left_as_it_is(
    pictures, tmp_path, before, now, said
):
    train(pictures("epochs=1", *before), tmp_path, quiet=True)
    left = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(UserError, match=said):
        train(pictures(*before, *now), tmp_path, quiet=True, go_on="auto")
    assert (tmp_path / "summary.json").read_bytes() == left


def test_a_run_from_before_there_was_drop_last_goes_on_with_all_batches(tiny, tmp_path):
    options = ("schedule.name=constant", "epochs=1")
    train(tiny(*options), tmp_path, quiet=True)
    file = rotation.newest_first(tmp_path)[0]
    stored = checkpoint.load(file)
    older = {name: value for name, value in stored.config.items() if name != "drop_last"}
    for each in (file, checkpoint.path(tmp_path, "last"), checkpoint.path(tmp_path, "best")):
        checkpoint.save(each, replace(stored, config=older))
    longer = tiny("schedule.name=constant", "epochs=2", "drop_last=true")
    assert train(longer, tmp_path, quiet=True, go_on="auto").steps == 12


@pytest.mark.parametrize("preset", ["crop-flip", "pad-flip"])
def test_a_run_with_images_on_the_device_is_one_run_and_no_other(
    pictures, killed_after, tmp_path, preset
):
    on_device = ("data.augment={preset: %s, mixup: 0.2, erase: 0.25}" % preset,)  # noqa: UP031
    config = pictures(*on_device, "data.cache_images=device")
    train(config, tmp_path / "whole", quiet=True)
    killed_after(config, tmp_path / "run", 9)
    train(config, tmp_path / "run", quiet=True, go_on="auto")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    with pytest.raises(UserError, match=r'made with data.cache_images="device", and the config'):
        train(pictures(*on_device), tmp_path / "run", quiet=True, go_on="auto")


def test_a_run_without_augmentation_is_the_same_on_the_device(pictures, tmp_path):
    runs = {}
    for where in ("none", "device"):
        runs[where] = tmp_path / where
        config = pictures("data.augment={preset: none}", f"data.cache_images={where}")
        train(config, runs[where], quiet=True)
    weights = [checkpoint.load(checkpoint.path(run, "last")).model for run in runs.values()]
    assert same(*weights)
