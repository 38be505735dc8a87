import json

import pytest
import torch
from torch.nn import functional

from halfstep.errors import UserError
from halfstep.train.after.evaluate import evaluate
from halfstep.train.build.models import build
from halfstep.train.build.schedules import ScheduleWarning
from halfstep.train.build.setup import set_up
from halfstep.train.config.files import load
from halfstep.train.data.sources.digits import load as load_digits
from halfstep.train.loop import loop
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint, rotation
from halfstep.train.store.run_directory import read_summary

COLLAPSING = "{init: 16777216, growth_interval: 1000, collapse_after: 1}"


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def final_weights(run):
    return checkpoint.load(checkpoint.path(run, "last")).model


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_run_directory_holds_everything(finished_run, tiny):
    names = {str(each.relative_to(finished_run)) for each in finished_run.rglob("*.*")}
    assert {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "log.txt",
        "summary.json",
        "checkpoints/best.pt",
        "checkpoints/last.pt",
    } <= names
    assert any(name.startswith("tensorboard/events") for name in names)
    assert not [name for name in names if name.endswith(".tmp")]
    assert load(str(finished_run / "config.yaml")) == tiny()


def test_summary_agrees_with_the_metrics(finished_run):
    summary = read_summary(finished_run)
    vals = [line for line in metrics(finished_run) if line["kind"] == "val"]
    assert [line["epoch"] for line in vals] == [1, 2]
    best = max(vals, key=lambda line: line["accuracy"])
    wanted = {
        "status": "finished",
        "config": "tiny",
        "tag": "small",
        "recipe": "fp32",
        "seed": 0,
        "best_accuracy": best["accuracy"],
        "best_epoch": best["epoch"],
        "final_accuracy": vals[-1]["accuracy"],
        "final_val_loss": vals[-1]["loss"],
        "peak_memory_kind": "resident-rise",
        "skipped_steps": 0,
        "first_nonfinite_step": None,
        "steps": 12,
        "epochs": 2,
        "val_images": 450,
        "device": "cpu",
        "error": None,
    }
    assert wanted.items() <= summary.items()
    assert 0 < summary["train_seconds"] < summary["wall_seconds"]
    assert summary["images_per_second"] == pytest.approx(2 * 1347 / summary["train_seconds"])


def test_metrics_come_at_every_interval_and_at_the_end_of_an_epoch(finished_run, tmp_path, tiny):
    assert [line["step"] for line in metrics(finished_run)] == [2, 4, 6, 6, 8, 10, 12, 12]
    train(tiny("log_every=4"), tmp_path, quiet=True)
    lines = [line for line in metrics(tmp_path) if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [4, 6, 8, 12]
    assert {
        "epoch",
        "loss",
        "accuracy",
        "lr",
        "loss_scale",
        "grad_norm",
        "images_per_second",
    } <= set(lines[0])


def test_two_runs_of_one_seed_are_bitwise_equal(finished_run, tiny, tmp_path):
    train(tiny(), tmp_path / "again", quiet=True)
    train(tiny(seed=1), tmp_path / "other", quiet=True)
    assert same(final_weights(finished_run), final_weights(tmp_path / "again"))
    assert not same(final_weights(finished_run), final_weights(tmp_path / "other"))


def test_fp32_run_is_the_plain_pytorch_loop_bitwise(finished_run, tiny):
    config = tiny()
    digits = load_digits(config.data).train
    scans = torch.utils.data.TensorDataset(digits.images, digits.labels)
    torch.manual_seed(config.seed)
    model = build(config.model, classes=10, image_shape=(1, 8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    generator = torch.Generator().manual_seed(config.seed)
    loader = torch.utils.data.DataLoader(scans, 256, shuffle=True, generator=generator)
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
    assert same(final_weights(finished_run), dict(model.state_dict()))


def test_last_checkpoint_is_of_the_last_epoch_and_best_of_the_best(finished_run):
    summary = read_summary(finished_run)
    last = checkpoint.load(checkpoint.path(finished_run, "last"))
    best = checkpoint.load(checkpoint.path(finished_run, "best"))
    assert (last.epoch, last.accuracy, last.step) == (2, summary["final_accuracy"], 12)
    assert (best.epoch, best.accuracy) == (summary["best_epoch"], summary["best_accuracy"])


def test_accumulation_clipping_and_schedule_change_the_run(tiny, tmp_path):
    options = ["accumulate=4", "clip_norm=1e-3", "epochs=1", "log_every=1"]
    before = train(tiny(*options), tmp_path, quiet=True)
    lines = [line for line in metrics(tmp_path) if line["kind"] == "train"]
    # 6 micro-batches: a window of 4, and one of 2 that the end of the epoch closes.
    assert before.steps == 2
    assert [line["lr"] for line in lines] == pytest.approx([0.05, 0.025])
    assert lines[0]["grad_norm"] > 1e-3  # the true norm, before clipping
    torch.manual_seed(0)
    start = build(tiny().model, classes=10, image_shape=(1, 8, 8)).state_dict()
    moved = (final_weights(tmp_path)["fc.weight"] - start["fc.weight"]).norm()
    assert 0 < moved < 1.2e-4


def test_poisoned_weights_stop_the_run_with_a_summary(tiny, tmp_path):
    summary = train(tiny("optimizer.lr=1e30", "epochs=9"), tmp_path, quiet=True)
    assert summary.status == "nonfinite"
    assert summary.first_nonfinite_step == 2
    assert summary.steps == 2  # the next log interval
    assert summary.epochs == 0
    assert summary.best_accuracy is None
    assert "step 2" in summary.error
    assert read_summary(tmp_path)["status"] == "nonfinite"
    assert metrics(tmp_path)[0]["loss"] in {"nan", "inf"}


def test_poison_in_the_very_last_step_is_found_by_the_validation(tiny, tmp_path):
    summary = train(tiny("optimizer.lr=1e30", "epochs=1", "batch_size=1347"), tmp_path, quiet=True)
    assert summary.status == "nonfinite"
    assert summary.first_nonfinite_step is None
    assert "the validation loss after the last epoch is nan" in summary.error
    assert read_summary(tmp_path)["final_val_loss"] == "nan"


def test_skipped_steps_are_counted_and_the_run_goes_on(tiny, tmp_path):
    options = ["recipe.loss_scale={init: 1048576}"]
    summary = train(tiny(*options, recipe="fp16"), tmp_path, quiet=True)
    assert summary.status == "finished"
    assert 0 < summary.skipped_steps < summary.steps == 12
    assert summary.recipe == "fp16*"
    scales = [line["loss_scale"] for line in metrics(tmp_path) if line["kind"] == "train"]
    assert scales[-1] < scales[0] <= 1048576


def test_collapsed_loss_scale_ends_the_run_with_a_summary(tiny, tmp_path):
    config = tiny(f"recipe.loss_scale={COLLAPSING}", recipe="fp16")
    summary = train(config, tmp_path, quiet=True)
    assert summary.status == "collapsed"
    assert summary.skipped_steps >= 1
    assert summary.error
    assert "\n" not in summary.error
    assert read_summary(tmp_path)["status"] == "collapsed"


def test_ctrl_c_leaves_whole_checkpoints_and_no_summary(tiny, tmp_path, monkeypatch):
    validate, calls = loop.validate, []

    def stop_in_the_second_epoch(setup):
        calls.append(setup)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validate(setup)

    monkeypatch.setattr(loop, "validate", stop_in_the_second_epoch)
    with pytest.raises(
        KeyboardInterrupt, match=r"in epoch 2; the run is in .*last\.pt holds epoch 1"
    ):
        train(tiny(), tmp_path, quiet=True)
    assert read_summary(tmp_path) is None
    assert checkpoint.load(checkpoint.path(tmp_path, "last")).epoch == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_unwritable_directory_is_refused_before_training(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_epochs", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the run directory"):
        train(tiny(), tmp_path / "file" / "run", quiet=True)


def test_wrong_model_leaves_no_directory(tiny, tmp_path):
    with pytest.raises(UserError, match="did you mean 'resnet18'"):
        train(tiny("model.name=resnet81"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_finished_run_of_another_config_stays_unless_told(tiny, tmp_path):
    train(tiny("epochs=1"), tmp_path, quiet=True)
    with pytest.raises(UserError, match="--overwrite"):
        train(tiny("epochs=1", "seed=1"), tmp_path, quiet=True)
    assert read_summary(tmp_path)["seed"] == 0
    train(tiny("epochs=1", "seed=1"), tmp_path, quiet=True, overwrite=True)
    assert read_summary(tmp_path)["seed"] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("recipe", ["fp32", "fp16", "bf16"])
def test_run_on_a_gpu_measures_device_memory(tiny, tmp_path, recipe):
    summary = train(tiny("device=cuda", recipe=recipe), tmp_path, quiet=True)
    assert summary.status == "finished"
    assert summary.peak_memory_kind == "device"
    assert summary.peak_memory_bytes > 0


def validated(run):
    return [line["epoch"] for line in metrics(run) if line["kind"] == "val"]


def test_validation_comes_every_so_many_epochs_and_after_the_last(tiny, tmp_path):
    summary = train(tiny("epochs=5", "val_every=2"), tmp_path, quiet=True)
    assert validated(tmp_path) == [2, 4, 5]
    assert (summary.epochs, checkpoint.load(checkpoint.path(tmp_path, "last")).epoch) == (5, 5)


@pytest.mark.parametrize(("most", "epochs"), [(4, 1), (6, 1), (9, 2), (99, 2)])
def test_max_steps_caps_a_run_and_its_schedule_and_still_validates(tiny, tmp_path, most, epochs):
    config = tiny(f"max_steps={most}", "log_every=1")
    summary = train(config, tmp_path, quiet=True)
    assert (summary.status, summary.steps, summary.epochs) == ("finished", min(most, 12), epochs)
    assert validated(tmp_path) == list(range(1, epochs + 1))
    lines = [line for line in metrics(tmp_path) if line["kind"] == "train"]
    assert lines[-1]["step"] == summary.steps
    assert lines[-1]["lr"] < 0.05 * 0.2  # the cosine has come down
    # What is over stays over.
    assert train(config, tmp_path, quiet=True, go_on="auto").steps == summary.steps
    assert validated(tmp_path) == list(range(1, epochs + 1))


def test_label_smoothing_is_torchs_and_not_part_of_validation(tiny, tmp_path, monkeypatch):
    train(tiny("epochs=1", "max_steps=1", "log_every=1"), tmp_path / "hard", quiet=True)
    config = tiny("epochs=1", "max_steps=1", "log_every=1", "label_smoothing=0.1")
    setup = set_up(config, torch.device("cpu"))
    images, labels = next(setup.task.data.train.epoch(1))
    with setup.engine:
        logits = setup.engine.model(images)
    wanted = functional.cross_entropy(logits, labels, label_smoothing=0.1)
    train(config, tmp_path / "smooth", quiet=True)
    assert metrics(tmp_path / "smooth")[0]["loss"] == pytest.approx(wanted.item(), rel=1e-6)
    assert metrics(tmp_path / "smooth")[0]["loss"] != metrics(tmp_path / "hard")[0]["loss"]
    stored = checkpoint.load(checkpoint.path(tmp_path / "smooth", "last"))
    val = evaluate(tmp_path / "smooth").measured.loss
    assert val == pytest.approx(stored.loss, rel=1e-5)


def test_average_is_what_is_validated_and_exported(tiny, tmp_path):
    config = tiny("average={decay: 0.8}", "checkpoints={every_steps: 1, keep: 99}")
    train(config, tmp_path, quiet=True)
    # By hand, from the weights after each step.
    steps = [checkpoint.load(file).model for file in reversed(rotation.newest_first(tmp_path))]
    torch.manual_seed(0)
    mean = build(config.model, classes=10, image_shape=(1, 8, 8)).state_dict()["fc.weight"]
    for weights in steps:
        mean = mean.lerp(weights["fc.weight"], 0.2)
    last = checkpoint.load(checkpoint.path(tmp_path, "last"))
    assert torch.allclose(last.weights["fc.weight"], mean, atol=1e-6)
    assert not torch.equal(last.weights["fc.weight"], last.model["fc.weight"])
    assert evaluate(tmp_path, "last").matches
    train(tiny(), tmp_path / "plain", quiet=True)
    assert last.loss != checkpoint.load(checkpoint.path(tmp_path / "plain", "last")).loss


def test_warm_up_as_long_as_the_run_is_warned_of(tiny, tmp_path):
    config = tiny("epochs=1", "schedule.warmup_epochs=1", "max_steps=1")
    with pytest.warns(ScheduleWarning, match=r"warmup_epochs is 1, and the run has 0.167 epochs: "):
        train(config, tmp_path, quiet=True)


def test_plateau_lowers_the_rate_after_validations(tiny, tmp_path):
    schedule = "schedule={name: plateau, metric: accuracy, patience: 0, threshold: 10}"
    train(tiny(schedule, "epochs=3"), tmp_path, quiet=True)
    rates = {line["epoch"]: line["lr"] for line in metrics(tmp_path) if line["kind"] == "train"}
    assert list(rates.values()) == pytest.approx([0.05, 0.05, 0.005])


def test_checkpoint_needs_no_data_set_to_be_understood(finished_run, tiny):
    stored = checkpoint.load(checkpoint.path(finished_run, "best"))
    assert stored.classes == tuple("0123456789")
    assert stored.preprocessing["image_shape"] == [1, 8, 8]
    assert len(stored.preprocessing["mean"]) == len(stored.preprocessing["std"]) == 1
    assert stored.config == tiny().model_dump(mode="json")


def test_tables_of_the_best_validation_lie_in_the_run(finished_run):
    classes = (finished_run / "classes.csv").read_text().splitlines()
    assert len(classes) == 11
    assert (finished_run / "confusion.csv").is_file()


@pytest.mark.parametrize(
    "schedule",
    [
        "{name: constant, warmup: 0.5}",
        "{name: one-cycle}",
        "{name: step, every_epochs: 0.5, warmup_epochs: 0.5}",
        "{name: multistep, milestones: [1], warmup_epochs: 0.5}",
        "{name: plateau, warmup_epochs: 1}",
    ],
)
def test_every_schedule_lives_through_a_validation(tiny, tmp_path, schedule):
    summary = train(tiny("max_steps=3", f"schedule={schedule}"), tmp_path / "run", quiet=True)
    assert summary.status == "finished"


def test_the_last_batch_of_an_epoch_is_left_out_where_it_is_smaller(tiny, tmp_path):
    """1,347 images in batches of 256 leave 67, which would make a step of their own."""
    summary = train(tiny("drop_last=true", "epochs=1"), tmp_path, quiet=True)
    assert (summary.steps, summary.epochs) == (5, 1)
    assert summary.images_per_second * summary.train_seconds == pytest.approx(5 * 256)
