"""`halfstep.fit` against plain PyTorch, and against the same training from a config."""

import copy
import math
import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.regression import MeanAbsoluteError

import halfstep
from halfstep import caller
from halfstep.train.build.setup import set_up
from halfstep.train.loop import loop
from halfstep.train.loop.loop import train
from halfstep.train.objects import fit as fitting
from halfstep.train.run.observer import Observer
from halfstep.train.store import checkpoint, metrics_log

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def python():
    """Word errors for Python, and not for the command line as the other tests of `train` do."""
    with caller.through(caller.Python()):
        yield


def dataset(samples=24, width=4):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, width, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh())


class Net(nn.Module):
    """Two linear layers, with dropout between them if a share is given."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs):
        return self.layers(inputs)


def fit(out, model=None, loss=functional.mse_loss, **arguments):
    """Fit a small model to a small data set, three epochs of four batches."""
    model = Net() if model is None else model
    weights = (model if isinstance(model, nn.Module) else Net()).parameters()
    given = {
        "optimizer": torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        "train_loader": DataLoader(dataset(), 6),
        "val_loader": DataLoader(dataset(10), 4),
        "epochs": 3,
        "out": out,
        "device": "cpu",
        "quiet": True,
    } | arguments
    return halfstep.fit(model, loss=loss, **given)


def test_every_weight_is_that_of_a_plain_loop(tmp_path):
    model, plain = Net(), Net()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(
        tmp_path / "run",
        model,
        optimizer=own,
        scheduler=torch.optim.lr_scheduler.StepLR(own, 2, 0.5),
        clip_norm=0.1,
    )
    for _ in range(3):
        for inputs, targets in DataLoader(dataset(), 6):
            optimizer.zero_grad()
            functional.mse_loss(plain(inputs), targets).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class OfASetup:
    """The prepared training batches of a config's run, epoch for epoch."""

    def __init__(self, setup):
        self.setup, self.epoch = setup, 1

    def set_epoch(self, number):
        self.epoch = number

    def __len__(self):
        return len(self.setup.task.data.train)

    def __iter__(self):
        data = self.setup.task.data
        for number, batch in enumerate(data.train.epoch(self.epoch)):
            yield data.prepare(*batch, device=CPU, train=True, epoch=self.epoch, number=number)


@pytest.mark.parametrize("recipe", ["fp16", "o2"])
def test_the_loop_is_that_of_a_config(tiny, tmp_path, recipe):
    config = tiny("accumulate=2", "clip_norm=1.0", recipe=recipe)
    summary = train(config, tmp_path / "config", quiet=True)
    setup = set_up(config, CPU)
    model, optimizer = setup.engine.bare_model, setup.engine.optimizer
    held_out = [
        setup.task.data.prepare(*each, device=CPU, train=False)
        for each in setup.task.data.val.epoch()
    ]
    setup.engine.close()
    fitted = halfstep.fit(
        model,
        optimizer,
        OfASetup(setup),
        held_out,
        loss=setup.task.loss,
        recipe=recipe,
        epochs=config.epochs,
        scheduler=setup.schedules.per_step,
        accumulate=2,
        clip_norm=1.0,
        device="cpu",
        overrides={"log_every": 2},
        out=tmp_path / "objects",
        quiet=True,
    )
    assert fitted.last["loss"] == pytest.approx(summary.final_val_loss, rel=1e-5)
    one, two = (
        checkpoint.load(checkpoint.path(tmp_path / each, "last")) for each in ("config", "objects")
    )
    assert all(torch.equal(one.model[name], two.model[name]) for name in one.model)
    logged = [
        [line["loss"] for line in metrics_log.read(tmp_path / each, "train")]
        for each in ("config", "objects")
    ]
    assert logged[0] == logged[1]


class Stopping(Observer):
    """Interrupts a run after so many steps, as Ctrl-C does."""

    def __init__(self, after):
        self.left = after

    def step_done(self, result):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Noisy(TensorDataset):
    """Samples with noise of three generators, as data augmentation draws it."""

    def __getitem__(self, at):
        inputs, targets = super().__getitem__(at)
        noise = torch.rand(4) + random.random() + np.random.random()  # noqa: NPY002
        return inputs + 0.1 * noise, targets


@pytest.mark.parametrize("generator", [True, False])
def test_a_resumed_run_sees_the_batches_of_a_run_without_a_break(tmp_path, generator):
    def run(out, **arguments):
        own = torch.Generator() if generator else None
        loader = DataLoader(Noisy(*dataset().tensors), 6, shuffle=True, generator=own)
        model = Net(dropout=0.5)
        given = {"overrides": {"checkpoints.every_steps": 1}, "recipe": "fp16"} | arguments
        return fit(tmp_path / out, model, train_loader=loader, **given), model

    whole, expected = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("parts", observers=[Stopping(6)])
    parts, model = run("parts", resume="auto")
    assert [line["loss"] for line in whole.history] == [line["loss"] for line in parts.history]
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    again, finished = run("parts", resume="auto")
    assert again.summary == parts.summary
    assert torch.equal(finished.layers[0].weight, expected.layers[0].weight)


def loss_of_model(model, batch):
    return functional.mse_loss(model(batch["inputs"]["x"]), batch["y"])


def largest_error(model, batch):
    return float((model(batch["inputs"]["x"]) - batch["y"]).abs().max())


def test_batches_can_be_anything_if_the_loss_takes_the_model(tmp_path):
    def batches(samples, size):
        return [
            {"inputs": {"x": inputs}, "y": targets, "names": ["a"]}
            for inputs, targets in DataLoader(dataset(samples), size)
        ]

    pairs, dicts = Net(), Net()
    expected = fit(tmp_path / "pairs", pairs)
    fitted = fit(
        tmp_path / "dicts",
        dicts,
        loss_of_model,
        train_loader=batches(24, 6),
        val_loader=batches(10, 4),
        metrics={"largest": largest_error},
    )
    assert torch.equal(pairs.layers[0].weight, dicts.layers[0].weight)
    assert fitted.last["loss"] == expected.last["loss"]
    assert fitted.last["largest"] > 0


def mae(outputs, targets):
    return functional.l1_loss(outputs, targets)


class BuiltError(Exception):
    """Ends a call of `fit` once its objects are on the device."""


def test_the_state_that_an_optimizer_has_already_moves_to_the_device(tmp_path, monkeypatch):
    """The device "meta" stands for a GPU; parameters keep their identity, as they do on one."""
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    moved = torch.device("meta")

    def built(*_):
        raise BuiltError

    monkeypatch.setattr(loop, "pick_device", lambda name: moved)
    monkeypatch.setattr(fitting, "engine_of", built)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(BuiltError):
            fit(tmp_path / "run", model, optimizer=optimizer)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert {each.device for each in model.parameters()} == {moved}
    assert {state["sum"].device for state in optimizer.state.values()} == {moved}
    assert len(optimizer.state) == 4


def test_the_device_of_a_run_is_the_current_one_until_it_ends(tmp_path, monkeypatch):
    entered, seen = [], []

    @contextmanager
    def in_use(device):
        entered.append(device)
        yield
        entered.remove(device)

    def loss(outputs, targets):
        seen.append(list(entered))
        return functional.mse_loss(outputs, targets)

    monkeypatch.setattr(loop, "in_use", in_use)
    fit(tmp_path / "run", loss=loss, epochs=1)
    assert {*map(tuple, seen)} == {(CPU,)}
    assert entered == []


def test_metrics_are_means_over_the_samples_and_choose_the_best_weights(tmp_path):
    model = Net()
    fitted = fit(
        tmp_path / "run",
        model,
        metrics={"own": mae, "theirs": MeanAbsoluteError()},
        monitor="theirs",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.9),
        epochs=4,
    )
    inputs, targets = dataset(10).tensors
    best = Net()
    best.load_state_dict(fitted.best_weights())
    with torch.no_grad():
        exact = (best.double()(inputs.double()) - targets).abs().mean().item()
    assert fitted.best["own"] == pytest.approx(exact, rel=1e-5)
    assert fitted.best["theirs"] == pytest.approx(exact, rel=1e-5)
    validations = [line for line in fitted.history if line["kind"] == "val"]
    assert len(validations) == 4
    assert fitted.best["theirs"] == min(line["theirs"] for line in validations)
    assert fitted.last["theirs"] == validations[-1]["theirs"]
    assert fitted.summary.best_accuracy is None


def test_an_accuracy_is_the_accuracy_of_the_summary(tmp_path):
    def accuracy(outputs, targets):
        return ((outputs > 0) == (targets > 0)).float().mean()

    fitted = fit(tmp_path / "run", metrics=[accuracy], monitor="accuracy")
    assert (
        fitted.summary.best_accuracy
        == fitted.best["accuracy"]
        == max(line["accuracy"] for line in fitted.history if line["kind"] == "val")
    )


def test_patience_and_a_plateau_follow_the_monitored_metric(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fitted = fit(
        tmp_path / "run",
        model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        metrics={"same": lambda outputs, targets: 1.0},
        monitor="same",
        mode="min",
        patience=2,
        epochs=9,
    )
    assert fitted.summary.epochs == 3
    assert "validation same has not been better than 1.0000" in fitted.summary.note
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


def test_a_stream_without_a_length_has_epochs_of_so_many_batches(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(dataset())

    summary = fit(
        tmp_path / "run", train_loader=DataLoader(Stream(), 2), batches_per_epoch=5
    ).summary
    assert (summary.steps, summary.val_images) == (15, 10)


def test_a_failed_run_has_a_status_and_a_diagnosis(tmp_path):
    def loss(outputs, targets):
        return functional.mse_loss(outputs, targets) * math.inf

    fitted = fit(tmp_path / "run", loss=loss)
    assert fitted.status == "nonfinite"
    assert (tmp_path / "run" / "diagnosis.txt").is_file()


def once():
    yield from DataLoader(dataset(), 6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": print}, "model is a builtin_function_or_method; allowed: a torch.nn.Module"),
        ({"optimizer": "sgd"}, "optimizer is a str; allowed: a torch.optim.Optimizer"),
        ({"train_loader": once()}, "train_loader is a generator, which can be read only once"),
        ({"val_loader": 7}, "val_loader is a int; allowed: a DataLoader"),
        ({"train_loader": []}, "train_loader has no batch"),
        ({"train_loader": [torch.ones(2, 4)]}, "train_loader gives a Tensor as a batch"),
        ({"loss": "mse"}, "loss is 'mse'; allowed: a function"),
        ({"loss": lambda outputs, targets: outputs}, "the loss returned a Tensor of shape"),
        ({"loss": lambda outputs, targets: targets.sum()}, "the loss has no gradient"),
        ({"metrics": {"loss": mae}}, "metrics has the name 'loss'"),
        ({"metrics": {"mae": 1.0}}, r"metrics\['mae'\] is a float; allowed: a function"),
        ({"metrics": [lambda outputs, targets: "x"]}, r"metrics\['<lambda>'\] returned a str"),
        ({"monitor": "mea", "metrics": [mae]}, "monitor is 'mea'.*did you mean 'mae'"),
        ({"monitor": "mae", "metrics": [mae]}, "whether more of it is better is not known"),
        ({"mode": "lower"}, "mode is 'lower'; allowed"),
        ({"epochs": 0}, "fit: epochs is 0; allowed: greater than or equal to 1"),
        ({"recipe": "fp61"}, "fit: recipe: .*fp61"),
        ({"overrides": {"log_evry": 1}}, "overrides: no key is named 'log_evry'.*'log_every'"),
        ({"overrides": {"epochs": 1}}, "overrides has 'epochs', which is an argument"),
        ({"overrides": {"probes": True}}, "overrides: probes: needs a model that a config names"),
        ({"scheduler": 1}, "scheduler is a int; allowed: one of torch.optim.lr_scheduler"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(tmp_path, arguments, said):
    with pytest.raises((TypeError, ValueError), match=said) as raised:
        fit(tmp_path / "run", **arguments)
    assert "\n" not in str(raised.value)


def test_another_optimizer_is_no_resume(tmp_path):
    fit(tmp_path / "run", epochs=1)
    model = Net()
    with pytest.raises(ValueError, match=r'objects.optimizer="SGD", and the config says "AdamW"'):
        fit(
            tmp_path / "run",
            model,
            optimizer=torch.optim.AdamW(model.parameters()),
            resume="auto",
        )
    with pytest.raises(ValueError, match="holds a finished run") as second:
        fit(tmp_path / "run", epochs=1)
    assert str(second.value) == (
        f"the run directory '{tmp_path / 'run'}' holds a finished run; write resume=\"auto\" to "
        "take its result, out with another directory to keep both, or overwrite=True to replace it"
    )


def test_more_epochs_continue_a_run_without_a_scheduler(tmp_path):
    expected, model = Net(), Net()
    fit(tmp_path / "whole", expected)
    fit(tmp_path / "parts", copy.deepcopy(model), epochs=1)
    fit(tmp_path / "parts", model, resume="auto")
    assert torch.equal(model.layers[0].weight, expected.layers[0].weight)


def test_commands_for_runs_of_a_config_refuse_a_run_of_objects(tmp_path):
    fit(tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match=r"is of a run by halfstep.fit"):
        halfstep.evaluate(tmp_path / "run")
    assert list((tmp_path / "run").glob("checkpoints/best.pt"))
