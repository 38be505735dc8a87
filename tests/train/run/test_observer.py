"""The seam that all observers stand on, ours and a user's: one contract for every one of them."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from batches_left_out import leave_out

from halfstep.errors import UserError
from halfstep.train.loop.loop import train
from halfstep.train.observers import observing
from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import HOOKS, Observer, Observers, overrides
from halfstep.train.store import checkpoint
from halfstep.train.store.run_directory import read_summary

ALL_ON = ("probes=true", "early_stopping={patience: 9}", "on_nonfinite=skip", "epochs=1")


class Everything(Observer):
    """Overrides every hook, and notes the calls."""

    name = "everything"

    def __init__(self):
        self.calls = []
        self.loaded = None

    def state_dict(self):
        return {"calls": len(self.calls)}

    def load_state_dict(self, state):
        self.loaded = state

    @contextmanager
    def around_micro_batch(self):
        self.calls.append(("around_micro_batch",))
        yield

    def interval(self):
        return {"mine": 0.5}

    def epoch_done(self):
        return {"of_the_epoch": 1.5}

    def summary(self):
        return {"seen": len(self.calls)}


def _noting(hook):
    default = getattr(Observer, hook)

    def noted(self, *given, **named):
        self.calls.append((hook, *given, *named.values()))
        return default(self, *given, **named)

    return noted


for _hook in HOOKS:
    if _hook not in vars(Everything):
        setattr(Everything, _hook, _noting(_hook))


@pytest.fixture(scope="module")
def watched(tiny, tmp_path_factory):
    """A run of twelve steps with every observer of ours on and one that notes all calls."""
    run, noting = tmp_path_factory.mktemp("observed") / "run", Everything()
    config = tiny(*ALL_ON, "accumulate=2", "batch_size=256", "log_every=2")
    found = []
    real = observing.of_run

    def of_run(*given, **named):
        found.extend(real(*given, **named))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observing, "of_run", of_run)
        summary = train(config, run, quiet=True, observers=[noting])
    return SimpleNamespace(run=run, noting=noting, summary=summary, all=found)


def names(watched):
    return [each[0] for each in watched.noting.calls]


def test_hooks_come_in_the_order_of_a_step(watched):
    calls = names(watched)
    assert calls[:2] == ["begin", "after_pause"]
    assert calls[-1] == "end"
    micro = ["batch_loaded", "batch_prepared", "around_micro_batch", "micro_batch"]
    start = calls.index("batch_loaded")
    first_step = [*micro, *micro, "veto", "before_step", "stepped", "step_done"]
    assert calls[start : start + len(first_step)] == first_step
    assert calls.count("stepped") == watched.summary.steps == 3
    steps = [each[1] for each in watched.noting.calls if each[0] == "stepped"]
    assert steps == [1, 2, 3]
    assert calls.index("validated") < calls.index("ends") < calls.index("veto_checkpoint")
    assert calls.index("veto_checkpoint") < calls.index("before_checkpoint")


def test_figures_and_summary_of_a_user_are_kept(watched):
    recorded = {each[1]: each[2] for each in watched.noting.calls if each[0] == "record"}
    assert recorded["train"]["mine"] == 0.5
    assert recorded["probe"]["of_the_epoch"] == 1.5
    assert recorded.keys() == {"train", "probe", "val"}
    assert read_summary(watched.run)["observed"].keys() == {"seen"}


def test_state_is_saved_under_the_name(watched):
    saved = checkpoint.load(checkpoint.path(watched.run, "last")).observers
    assert saved["everything"]["calls"] > 20
    assert saved.keys() >= {"meter", "nonfinite", "nonfinite_steps", "probes"}


def test_every_observer_keeps_the_contract(watched):
    """Its hooks have the seam's parameters, its name is its own, its state comes back."""
    assert len(watched.all) >= 12
    assert len({each.name for each in watched.all}) == len(watched.all)
    for each in watched.all:
        mine = [hook for hook in HOOKS if overrides(each, hook)]
        assert mine, f"{each.name} does nothing"
        for hook in mine:
            if each is not watched.noting:
                theirs = inspect.signature(getattr(Observer, hook)).parameters
                assert list(inspect.signature(getattr(type(each), hook)).parameters) == list(
                    theirs
                ), (each.name, hook)
        state = each.state_dict()
        assert (state is None) == ("load_state_dict" not in mine), each.name
        if state is not None:
            each.load_state_dict(state)
            assert each.state_dict().keys() == state.keys()


def test_a_hook_that_nobody_overrides_is_not_called(monkeypatch):
    class Quiet(Observer):
        def stepped(self, step, result):
            raise AssertionError

    called = []
    monkeypatch.setattr(Observer, "micro_batch", lambda *_: called.append("micro_batch"))
    observers = Observers([Quiet()], ALONE)
    observers.call("micro_batch", None, None, None)
    assert called == []
    with pytest.raises(AssertionError):
        observers.call("stepped", 1, None)


def test_answers_of_own_observers_that_are_called_together_are_all_kept(monkeypatch):
    class First(Observer):
        def interval(self):
            return {"first": 1}

    class Second(Observer):
        def interval(self):
            return {"second": 2}

    for each in (First, Second):
        monkeypatch.setattr(each, "__module__", "halfstep.train.observers.own")
    observers = Observers([First(), Second()], ALONE)
    assert observers.figures("interval") == {"first": 1, "second": 2}


def test_those_that_began_end_in_reverse_and_hear_of_the_error():
    heard = []

    class Named(Observer):
        def __init__(self, name, fails=False):
            self._name, self._fails = name, fails

        @property
        def name(self):
            return self._name

        def begin(self, training):
            if self._fails:
                raise OSError("no room")

        def end(self, error):
            heard.append((self._name, type(error)))

    observers = Observers([Named("a"), Named("b"), Named("c", fails=True)], ALONE)
    with pytest.raises(OSError, match="no room"), observers.watching(None):
        raise AssertionError
    assert heard == [("b", OSError), ("a", OSError)]
    with pytest.raises(UserError, match="observers has 'a' twice"):
        Observers([Named("a"), Named("a")], ALONE)


class Picky(Observer):
    """Has the second step left out, and ends the run after its first epoch."""

    def __init__(self):
        self.step = 0

    def stepped(self, step, result):
        self.step = step

    def veto(self):
        return self.step == 1

    def ends(self):
        return "that will do"


def test_a_veto_leaves_nothing_behind_and_a_reason_ends_the_run(tiny, tmp_path):
    options = ("epochs=3", "schedule.name=constant")
    summary = train(tiny(*options), tmp_path / "run", quiet=True, observers=[Picky()])
    assert (summary.status, summary.note, summary.epochs) == ("finished", "that will do", 1)
    assert (summary.steps, summary.skipped_steps, summary.first_nonfinite_step) == (6, 1, None)
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch, {(1, 1)})
        train(tiny(*options, "epochs=1"), tmp_path / "without", quiet=True)
    one, other = (
        checkpoint.load(checkpoint.path(tmp_path / name, "last")).model
        for name in ("run", "without")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


OWN = """
from halfstep.train.run.observer import Observer

class Norms(Observer):
    def interval(self):
        return {"answer": 42.0}

def no_observer():
    return 3
"""


def test_a_config_names_a_users_own(tiny, tmp_path, monkeypatch):
    (tmp_path / "my_observers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    config = tiny("observers=[import:my_observers:Norms]", "max_steps=1", "epochs=1")
    train(config, tmp_path / "run", quiet=True)
    assert '"answer": 42.0' in (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="which makes a int; write the path of a subclass"):
        train(tiny("observers=[import:my_observers:no_observer]"), tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("wrong", ["my_observers:Norms", "import:my_observers", "import:a/b:c"])
def test_what_is_no_import_path_is_refused(tiny, wrong):
    with pytest.raises(
        UserError,
        match=r"is not an observer; allowed: "
        "import:package.module:Class",
    ):
        tiny(f"observers=['{wrong}']")


def test_a_users_state_comes_back_and_observers_may_change(tiny, tmp_path):
    train(
        tiny("epochs=1", "schedule.name=constant"), tmp_path, quiet=True, observers=[Everything()]
    )
    again = Everything()
    longer = tiny("epochs=2", "schedule.name=constant")
    summary = train(longer, tmp_path, quiet=True, go_on="auto", observers=[again])
    assert again.loaded["calls"] > 0
    assert summary.epochs == 2
    # A run may go on without them.
    assert train(longer, tmp_path, quiet=True, go_on="auto", observers=[]).epochs == 2


@pytest.mark.parametrize("error", [KeyError("seen"), RuntimeError("no"), ValueError("old")])
def test_what_a_users_observer_raises_is_said_of_it_and_not_of_the_checkpoint(error, tmp_path):
    class Broken(Observer):
        name = "mine"

        def load_state_dict(self, state):
            raise error

    said = f"observer 'mine': load_state_dict raised {type(error).__name__}"
    with pytest.raises(UserError, match=said), checkpoint.explained(tmp_path / "last.pt"):
        Observers([Broken()], ALONE).load([{"mine": {"seen": 1}}])
