"""The interface of a run's observers: meters, guards, trackers, and those of the user.

An observer overrides the hooks that it needs. Other hooks cost nothing, because `Observers` lists
for each hook the observers that override it. The loop calls the hooks and knows no individual
observer. Each process has its own observers; all processes call them in the same order, so that an
observer may communicate with the same observer on other processes.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from halfstep import caller, step_observer
from halfstep.errors import UserError, in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from halfstep.engine import StepResult
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import State
    from halfstep.train.task.figures import Figures


_Result = TypeVar("_Result")


class Observer:
    """Base class for observers of a run. Every hook does nothing by default.

    The training thread calls the hooks between the stages of its loop. An exception in a hook ends
    the run. Waiting for the device in `micro_batch` or `stepped` slows down every step.
    """

    @property
    def name(self) -> str:
        """Key of the observer's state in checkpoints; must be unique within the run."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def begin(self, training: Training) -> None:
        """Called before training, when everything is built.

        In a resumed run, the checkpoint's states are loaded after this call, except that the
        model's weights are sometimes loaded before it.
        """

    def end(self, error: BaseException | None) -> None:
        """Called after training, unless this observer's `begin` failed.

        Args:
            error: The exception that ended training; None if there was none, as in a run that
                failed numerically.
        """

    def after_pause(self) -> None:
        """Called when an epoch begins, and after training paused for a checkpoint.

        A background thread may still be writing the file, from a copy of the state.
        """

    def batch_loaded(self) -> None:
        """Called when a training batch is loaded, before it is normalized and augmented."""

    def batch_prepared(self) -> None:
        """Called when the batch is on the device, normalized and augmented."""

    def around_micro_batch(self) -> AbstractContextManager[None]:
        """Return a context manager for the forward and backward pass of each micro-batch."""
        return nullcontext()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Called after the backward pass of a micro-batch.

        Args:
            loss: Mean loss, a detached scalar on the device.
            logits: Detached tensor of shape (N, classes). Do not change it in place.
            labels: int64 tensor of shape (N,), or fp32 probabilities of shape (N, classes) if
                labels are mixed.
        """

    def veto(self) -> bool:
        """Return True to skip the next optimizer step, on all processes."""
        return False

    def before_step(self, *, last: bool) -> None:
        """Called before an optimizer step; `last` says whether it is the last of its epoch."""

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Called after an optimizer step.

        Args:
            step: Number of the step, from 1. It never decreases.
            result: The engine's result; None if an observer's `veto` skipped the step.
        """

    def interval(self) -> Mapping[str, Any]:
        """Return figures on the steps since the last call, by name, for the training metrics."""
        return {}

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Called with new metrics, on rank 0 only.

        Args:
            kind: "train" for training metrics, "val" for a validation, "probe" for the figures
                that `epoch_done` returned.
            figures: Numbers by name; at least `step` and `epoch`.
        """

    def step_done(self, result: StepResult | None) -> None:
        """Called after the metrics of a step are recorded; see `stepped` for `result`."""

    def epoch_done(self) -> Mapping[str, Any]:
        """Called at the end of an epoch, before validation; returns figures by name to record."""
        return {}

    def validated(self, figures: Figures) -> None:
        """Called after a validation, with its results."""

    def ends(self) -> str | None:
        """Return a reason to end the run after this epoch, or None to continue."""
        return None

    def veto_checkpoint(self) -> bool:
        """Return True to prevent a checkpoint, for example while weights are non-finite."""
        return False

    def before_checkpoint(self) -> None:
        """Called before a checkpoint is written, to write files that belong to it.

        Raises:
            OSError: If the files cannot be written. The checkpoint is then not written either.
        """

    def summary(self) -> Mapping[str, Any]:
        """Return fields for the summary; those that `Summary` lacks are stored under `observed`."""
        return {}

    def state_dict(self) -> State | None:
        """Return this process's state for a checkpoint, or None; may wait for the device."""
        return None

    def load_state_dict(self, state: State) -> None:
        """Load the state that `state_dict` returned."""

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        """Return the state for this process if the number of processes has changed.

        Args:
            states: The saved states in the order of the ranks, without ranks that saved none. By
                default, every process loads the first.
            first: Whether this process is rank 0.

        Returns:
            The state to load, or None to start without one.
        """
        return states[0]


HOOKS = tuple(
    name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_")
)


class Observers:
    """The observers of one run. Hooks are called in the order of the observers, `end` in reverse.

    Raises:
        UserError: If two observers have the same name.
    """

    def __init__(self, observers: Sequence[Observer], processes: Processes) -> None:
        self._all = tuple(observers)
        self._processes = processes
        named = [observer.name for observer in observers]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"observers has {twice!r} twice, and each one's state is saved under its name; "
                "leave one out, or give its class a name of its own"
            )
        self._hooks: dict[str, list[Callable[..., Any]]] = {
            hook: [getattr(observer, hook) for observer in observers if overrides(observer, hook)]
            for hook in HOOKS
        }
        self._calls = {hook: _calls(observers, hook) for hook in HOOKS}

    @contextmanager
    def watching(self, training: Training) -> Iterator[None]:
        """Call `begin` of all observers before the block, and `end` after it."""
        with ExitStack() as stack:
            for observer in self._all:
                observer.begin(training)
                stack.push(partial(_end, observer))
            yield

    def calls(self, hook: str) -> Calls:
        """Return the functions that `call` would call, for a loop that calls a hook often."""
        return Calls(self._hooks[hook], self._calls[hook])

    def call(self, hook: str, *given: Any, **named: Any) -> None:
        """Call a hook that returns nothing."""
        for call in self._calls[hook]:
            call(*given, **named)

    def figures(self, hook: str) -> dict[str, Any]:
        """Call the hook `interval`, `epoch_done` or `summary`; return all figures in one dict."""
        answers = [answer for call in self._calls[hook] for answer in _listed(call())]
        return {name: value for answer in answers for name, value in answer.items()}

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Call `record` of the observers of the first process."""
        if self._processes.is_first:
            self.call("record", kind, figures)

    def any(self, hook: str) -> bool:
        """Call a hook; tell whether any observer on any process returned True."""
        # Every observer is called, even after a True, because each may communicate.
        answers = [ask() for ask in self._hooks[hook]]
        return bool(answers) and self._processes.any(any(answers))

    def reason_to_end(self) -> str | None:
        """Return why the run should end, or None to continue; the same decision on all processes.

        The first process returns the reason of the lowest rank that has one. Other processes return
        their own reason, or "" if they have none.
        """
        if not self._hooks["ends"]:
            return None
        reasons = [ask() for ask in self._hooks["ends"]]
        mine = next((reason for reason in reasons if reason is not None), None)
        if not self._processes.any(mine is not None):
            return None
        gathered = self._processes.gather(mine)
        return next((reason for reason in gathered if reason is not None), mine or "")

    def has(self, hook: str) -> bool:
        """Tell whether any observer of this process overrides a hook."""
        return bool(self._hooks[hook])

    def around_micro_batch(self, run: Callable[..., _Result]) -> Callable[..., _Result]:
        """Wrap `run`, a forward and backward pass, in the observers' context managers."""
        entered = self._hooks["around_micro_batch"]
        if not entered:
            return run

        def run_within(*given: Any) -> _Result:
            with _all_of(entered):
                return run(*given)

        return run_within

    def state_dict(self) -> dict[str, State]:
        """Return the states of this process's observers, by the observers' names."""
        states = {observer.name: observer.state_dict() for observer in self._all}
        return {name: state for name, state in states.items() if state is not None}

    def load(self, states: Sequence[Mapping[str, State]]) -> None:
        """Load the observers' states of a checkpoint.

        Args:
            states: For each rank of the run that made the checkpoint, the states by name. The
                number of ranks may differ from the present one.

        Raises:
            UserError: If `load_state_dict` of a user's observer raises. This error does not mean
                that the checkpoint is invalid.
        """
        processes = self._processes
        for observer in self._all:
            if len(states) == processes.size:
                state = states[processes.rank].get(observer.name)
            else:
                known = [of_rank[observer.name] for of_rank in states if observer.name in of_rank]
                state = observer.redistributed(known, first=processes.is_first) if known else None
            if state is None:
                continue
            try:
                observer.load_state_dict(state)
            except Exception as error:
                if _is_ours(observer):
                    raise
                raise UserError(
                    f"observer {observer.name!r}: load_state_dict raised {in_a_line(error)}; "
                    f"{caller.traceback()}"
                ) from error


class Calls:
    """The functions to call for a hook that returns nothing, for a loop that calls it often.

    Args:
        methods: The methods of the observers that override the hook, in order.
        heard: The functions to call instead if the active step observer listens to torch calls;
            see `_calls`.
    """

    __slots__ = ("_heard", "_methods")

    def __init__(
        self, methods: Sequence[Callable[..., Any]], heard: Sequence[Callable[..., Any]]
    ) -> None:
        self._methods, self._heard = tuple(methods), tuple(heard)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self._heard if step_observer.active.listens else self._methods)


_METERING = {"batch_loaded", "batch_prepared", "micro_batch", "stepped", "interval", "record"}
"""Hooks in which halfstep's own observers only measure, without effect on training."""


def _calls(observers: Sequence[Observer], hook: str) -> list[Callable[..., Any]]:
    """Return the functions to call for a hook, in order.

    Methods of halfstep's own observers that only measure are called through `_aside`; consecutive
    ones share one call.
    """
    calls: list[Callable[..., Any]] = []
    having = [observer for observer in observers if overrides(observer, hook)]
    for aside, group in groupby(having, lambda one: hook in _METERING and _is_ours(one)):
        methods = [getattr(one, hook) for one in group]
        calls += [partial(_aside, methods)] if aside else methods
    return calls


def _aside(methods: Sequence[Callable[..., Any]], *given: Any, **named: Any) -> list[Any]:
    """Call methods, return their results; a step observer does not listen to their torch calls."""
    if not step_observer.active.listens:
        return [method(*given, **named) for method in methods]
    with step_observer.active.aside():
        return [method(*given, **named) for method in methods]


def _listed(answers: Any) -> list[Any]:
    return answers if isinstance(answers, list) else [answers]


def _is_ours(observer: Observer) -> bool:
    return type(observer).__module__.startswith("halfstep.")


def overrides(observer: Observer, hook: str) -> bool:
    """Tell whether an observer overrides a hook."""
    return getattr(type(observer), hook) is not getattr(Observer, hook)


@contextmanager
def _all_of(makers: Sequence[Callable[[], AbstractContextManager[None]]]) -> Iterator[None]:
    with ExitStack() as stack:
        for make in makers:
            stack.enter_context(make())
        yield


def _end(observer: Observer, _: Any, error: BaseException | None, __: Any) -> None:
    observer.end(error)
