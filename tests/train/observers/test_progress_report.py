"""What a run prints, and the same lines in `log.txt`."""

import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import halfstep
from halfstep.train.observers import observing
from halfstep.train.observers.progress_report import EVERY_S, ProgressReport
from halfstep.train.run.progress import Progress
from halfstep.train.run.training import Stopwatch, Training
from halfstep.train.store.line_file import LOG
from halfstep.train.task.figures import Monitor

FIGURES = {"loss": 0.5, "accuracy": 0.25, "images_per_second": 123.0, "loss_scale": 65536.0}


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Run:
    """A run of two epochs of 100 steps of 10 seconds, of which only the observer is real.

    Every 10th step and the last one of an epoch are recorded; the second epoch is validated.
    """

    def __init__(self, directory, *, terminal=False, quiet=False, resumed_at=None, width=160):
        self.clock, self.resumed_at = Clock(), resumed_at
        self.console = Console(
            file=io.StringIO(), force_terminal=terminal, width=width, color_system=None
        )
        self.observer = ProgressReport(
            lambda: 64 * 2**20, quiet=quiet, console=self.console, clock=self.clock
        )
        engine = SimpleNamespace(steps=0, recipe=SimpleNamespace(name="fp16"))
        task = SimpleNamespace(unit="images")
        setup = SimpleNamespace(steps=200, steps_per_epoch=100, engine=engine, task=task)
        config = SimpleNamespace(name="digits", seed=0, epochs=2, val_every=2)
        stopwatch = SimpleNamespace(seconds=0.0)
        self.training = Training(
            config, setup, directory, resumed_at, Progress(), stopwatch=stopwatch
        )

    def step(self, loss):
        self.clock.now += 10.0
        self.training.stopwatch.seconds += 10.0
        self.observer.micro_batch(torch.tensor(loss), torch.zeros(1, 2), torch.zeros(1))
        self.training.progress.images += 500
        self.training.setup.engine.steps += 1

    def epoch(self):
        training, engine = self.training, self.training.setup.engine
        epoch = training.progress.epoch
        for number in range(engine.steps + 1, 100 * epoch + 1):
            self.step(loss=1 / number)
            if number % 10 == 0:
                figures = {"step": number, "epoch": epoch, **FIGURES, "loss": float(number)}
                self.observer.record("train", figures)
        self.observer.epoch_done()
        if training.validation_due:
            figures = {"step": number, "epoch": epoch, "loss": 0.75, "accuracy": 0.5}
            self.observer.record("val", figures)
        training.progress.epochs = epoch

    def __enter__(self):
        self.observer.begin(self.training)
        self.training.setup.engine.steps = self.resumed_at or 0
        return self

    def __exit__(self, kind, error, traceback):
        self.observer.end(error)

    @property
    def printed(self):
        return self.console.file.getvalue()


def logged(run):
    text = (run / LOG).read_text()
    assert not text or text.endswith("\n")
    return text.splitlines()


def test_without_a_terminal_there_is_a_line_for_each_epoch_and_each_minute(tmp_path):
    with Run(tmp_path) as run:
        run.epoch()
        assert run.printed.count("\n") == len(logged(tmp_path)) == 1 + 16 + 1
        run.epoch()
    lines = run.printed.splitlines()
    assert lines == logged(tmp_path)
    assert lines[0] == "digits fp16 seed 0: 200 steps in 2 epochs"
    # Before the first record: the loss of the newest micro-batch, and the speed so far.
    assert lines[1] == "epoch 1/2, step 5/200, loss 0.1667, 41.7 images/s, 39m00s left"
    assert lines[2] == "epoch 1/2, step 11/200, loss 10.0000, 123 images/s, 34m22s left"
    assert lines[17] == "epoch 1/2, step 100/200, loss 100.0000, 123 images/s, 16m40s left"
    assert lines[-1] == (
        "epoch 2/2, step 200/200, loss 200.0000, val loss 0.7500, val accuracy 50.00%, "
        "123 images/s, 0.0s left"
    )


def test_a_line_is_never_older_than_a_minute_and_a_step(tmp_path):
    with Run(tmp_path) as run:
        for number in range(1, 31):
            before = len(logged(tmp_path))
            run.step(loss=1.0)
            assert (len(logged(tmp_path)) > before) == (number * 10 % EVERY_S == 0)


def test_on_a_terminal_the_bar_is_drawn_and_the_log_is_written(tmp_path):
    with Run(tmp_path, terminal=True) as run:
        run.epoch()
        run.epoch()
    for part in ("digits fp16", "epoch 2/2", "200/200", "loss 200.0000", "acc 25.0%", "64 MiB"):
        assert part in run.printed
    assert "epoch 2: val loss 0.7500, val accuracy 50.00%" in run.printed
    assert "images/s" not in run.printed
    assert len(logged(tmp_path)) == 1 + 2 * (16 + 1)


@pytest.mark.parametrize("width", [60, 80])
def test_on_a_narrow_terminal_every_figure_is_whole(tmp_path, width):
    with Run(tmp_path, terminal=True, width=width) as run:
        run.epoch()
        run.epoch()
    last = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run.printed).strip())[-1]
    assert re.fullmatch(r"epoch 2/2 .* 200/200  loss 200\.0000 .* 123 img/s  0\.0s left", last)
    assert len(last) <= width


@pytest.mark.parametrize("terminal", [False, True])
def test_a_quiet_run_shows_nothing_but_writes_its_log(tmp_path, terminal):
    with Run(tmp_path, terminal=terminal, quiet=True) as run:
        run.epoch()
    assert run.printed == ""
    assert len(logged(tmp_path)) == 18


def test_a_run_that_goes_on_adds_to_its_log_and_predicts_from_its_own_steps(tmp_path):
    with Run(tmp_path) as run:
        run.epoch()
    first = logged(tmp_path)
    with (tmp_path / LOG).open("a") as file:
        file.write("epoch 2/2, st")  # killed while it wrote
    with Run(tmp_path, resumed_at=100) as run:
        run.training.progress.epochs = 1
        run.epoch()
    lines = logged(tmp_path)
    assert lines[:18] == first
    assert lines[18] == "digits fp16 seed 0: 200 steps in 2 epochs, resumed at step 100"
    assert lines[19].startswith("epoch 2/2, step 105/200")
    assert lines[19].endswith(", 19m00s left")
    with Run(tmp_path):
        pass
    assert logged(tmp_path) == first[:1]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, "the loss is nan", "the loss is nan"),
        (
            KeyboardInterrupt("interrupted\nin epoch 1"),
            None,
            "KeyboardInterrupt: interrupted in",
        ),
        (None, None, "digits fp16 seed 0: 200 steps in 2 epochs"),
    ],
)
def test_the_log_ends_with_the_reason_of_a_run_that_did_not_finish(tmp_path, error, status, said):
    run = Run(tmp_path)
    run.observer.begin(run.training)
    if status:
        run.training.progress.stop("nonfinite", status)
    run.observer.end(error)
    assert logged(tmp_path)[-1].startswith(said)
    assert run.printed.count("\n") == 1


def test_a_reader_that_has_left_does_not_end_the_run(tmp_path):
    class Unread(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    run = Run(tmp_path)
    run.console.file = Unread()
    with run:
        run.epoch()
    assert run.printed.count("\n") == 1
    assert len(logged(tmp_path)) == 18


def test_a_training_without_a_terminal_prints_its_log(tiny_file, tmp_path, capsys):
    overrides = {"epochs": 2, "val_every": 2}
    halfstep.train(tiny_file, overrides=overrides, out=tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert lines == logged(tmp_path / "run")
    assert len(lines) == 3
    assert lines[0] == "tiny fp32 seed 0: 12 steps in 2 epochs"
    figures = (r"loss \d\.\d{4}", r"[\d.]+ images/s, [\d.]+s left")
    validation = r"val loss \d\.\d{4}, val accuracy \d+\.\d\d%"
    assert re.fullmatch(", ".join(("epoch 1/2, step 6/12", *figures)), lines[1])
    last = ("epoch 2/2, step 12/12", figures[0], validation, figures[1])
    assert re.fullmatch(", ".join(last), lines[2])


def test_only_the_first_process_reports(tiny):
    def reports(rank):
        processes = SimpleNamespace(rank=rank, size=2, is_first=rank == 0)
        setup = SimpleNamespace(
            device=torch.device("cpu"),
            processes=processes,
            engine=SimpleNamespace(recipe=SimpleNamespace(name="fp32")),
            task=SimpleNamespace(monitor=Monitor(), size=len, classifies=True),
        )
        training = SimpleNamespace(
            config=tiny(),
            setup=setup,
            processes=processes,
            progress=Progress(),
            stopwatch=Stopwatch(),
        )
        made = observing.of_run(training, [], quiet=False)
        return [each for each in made if isinstance(each, ProgressReport)]

    assert (len(reports(0)), len(reports(1))) == (1, 0)
