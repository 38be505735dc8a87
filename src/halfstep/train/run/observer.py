"""What may watch a run in training: the seam under meters, guards, trackers and a user's own.

An observer overrides the hooks that it needs; the others cost nothing, as `Observers` lists for
each hook who overrides it. The loop calls the hooks and names no observer. Of several processes
each has its own observers, called in the same order everywhere, so that they may communicate.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from halfstep import step_observer
from halfstep.errors import UserError, in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from halfstep.engine import StepResult
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.training import Training
    from halfstep.train.run.validate import Figures
    from halfstep.train.store.checkpoint import State


class Observer:
    """Watches one run; every hook does nothing by default.

    Hooks are called by the training thread, between the steps of the loop. What a hook raises ends
    the run. Waiting for the device in `micro_batch` or `stepped` makes every step slower.
    """

    @property
    def name(self) -> str:
        """What its state is called in checkpoints; no other observer of the run has the same."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def begin(self, training: Training) -> None:
        """Take note of the run: everything is built, and no state was loaded yet."""

    def end(self, error: BaseException | None) -> None:
        """Let go of everything: training is over, or was left by `error`. Not if `begin` failed."""

    def after_pause(self) -> None:
        """Go on: an epoch begins, or a checkpoint was written meanwhile."""

    def batch_loaded(self) -> None:
        """Take note that a training batch is there, on the CPU."""

    def batch_prepared(self) -> None:
        """Take note that it is on the device, normalised and augmented."""

    def around_micro_batch(self) -> AbstractContextManager[None]:
        """Return what a forward and backward pass runs in."""
        return nullcontext()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Look at a micro-batch after its backward pass.

        Args:
            loss: Its mean loss, a scalar on the device, detached.
            logits: Shape (N, classes), detached.
            labels: int64 (N,), or fp32 probabilities (N, classes) where labels are mixed.
        """

    def veto(self) -> bool:
        """Tell whether the window that closes now is left out; one process is enough."""
        return False

    def before_step(self, *, last: bool) -> None:
        """Look at the run before an optimizer step, which may be the last one of its epoch."""

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Look at the run after an optimizer step.

        Args:
            step: Its number, from 1; never goes back.
            result: What became of it; None where it was left out.
        """

    def interval(self) -> Mapping[str, Any]:
        """Return the figures since the last call, for a line of training figures."""
        return {}

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Take figures that came up; on the first process alone.

        Args:
            kind: "train" for an interval, "val" for a validation, "probe" for the end of an epoch.
            figures: By name; at least `step` and `epoch`.
        """

    def step_done(self, result: StepResult | None) -> None:
        """Do what follows from a step, once its figures are recorded; see `stepped`."""

    def epoch_done(self) -> Mapping[str, Any]:
        """Return the figures of the epoch that has ended; it is not validated yet."""
        return {}

    def validated(self, figures: Figures) -> None:
        """Look at a validation."""

    def ends(self) -> str | None:
        """Return why the run should end after this epoch, in good order; None to go on."""
        return None

    def veto_checkpoint(self) -> bool:
        """Tell whether what would be saved now is nothing to go back to."""
        return False

    def before_checkpoint(self) -> None:
        """Write what belongs before a checkpoint.

        Raises:
            OSError: If that cannot be done; the checkpoint is then not written.
        """

    def summary(self) -> Mapping[str, Any]:
        """Return fields of the run's summary; those it does not have are under `observed`."""
        return {}

    def state_dict(self) -> State | None:
        """Return what a resume needs of this process; None for nothing. May wait for the device."""
        return None

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` returned."""

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        """Return what this process loads where the run had another number of processes.

        States are by rank; the first rank's is loaded by default. None begins without one.
        """
        return states[0]


HOOKS = tuple(
    name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_")
)


class Observers:
    """The observers of one run, called in their order: the first begins first and ends last.

    Raises:
        UserError: If two of them have one name.
    """

    def __init__(self, observers: Sequence[Observer], processes: Processes) -> None:
        self._all = tuple(observers)
        self._processes = processes
        named = [each.name for each in observers]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"observers has {twice!r} twice, and each one's state is saved under its name; "
                "leave one out, or give its class a name of its own"
            )
        self._hooks: dict[str, list[Callable[..., Any]]] = {
            hook: [getattr(each, hook) for each in observers if overrides(each, hook)]
            for hook in HOOKS
        }
        self._calls = {hook: _calls(observers, hook) for hook in HOOKS}

    @contextmanager
    def watching(self, training: Training) -> Iterator[None]:
        """Let them watch what trains inside."""
        with ExitStack() as stack:
            for each in self._all:
                each.begin(training)
                stack.push(partial(_end, each))
            yield

    def call(self, hook: str, *given: Any, **named: Any) -> None:
        """Call a hook that returns nothing."""
        for each in self._calls[hook]:
            each(*given, **named)

    def figures(self, hook: str) -> dict[str, Any]:
        """Return what `interval`, `epoch_done` or `summary` have come to, together."""
        answers = [answer for each in self._calls[hook] for answer in _listed(each())]
        return {name: value for answer in answers for name, value in answer.items()}

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Let those of the first process record figures."""
        if self._processes.is_first:
            self.call("record", kind, figures)

    def any(self, hook: str) -> bool:
        """Tell whether one of them, on any process, answers a hook with yes."""
        # Every one is asked, as each may communicate.
        answers = [each() for each in self._hooks[hook]]
        return bool(answers) and self._processes.any(any(answers))

    def reason_to_end(self) -> str | None:
        """Return why the run should end, as the lowest rank that has a reason says."""
        if not self._hooks["ends"]:
            return None
        reasons = [each() for each in self._hooks["ends"]]
        mine = next((reason for reason in reasons if reason is not None), None)
        if not self._processes.any(mine is not None):
            return None
        said = self._processes.gather(mine)
        return next((reason for reason in said if reason is not None), mine or "")

    def around_micro_batch(self) -> AbstractContextManager[object]:
        """Return what they want a forward and backward pass to run in."""
        entered = self._hooks["around_micro_batch"]
        return _all_of(entered) if entered else nullcontext()

    def state_dict(self) -> dict[str, State]:
        """Return the states of this process, by name."""
        states = {each.name: each.state_dict() for each in self._all}
        return {name: state for name, state in states.items() if state is not None}

    def load(self, states: Sequence[Mapping[str, State]]) -> None:
        """Take over the states of a checkpoint, by rank, of any number of processes.

        Raises:
            UserError: If a user's own observer raises, which says nothing of the checkpoint.
        """
        processes = self._processes
        for each in self._all:
            if len(states) == processes.size:
                state = states[processes.rank].get(each.name)
            else:
                known = [of_rank[each.name] for of_rank in states if each.name in of_rank]
                state = each.redistributed(known, first=processes.is_first) if known else None
            if state is None:
                continue
            try:
                each.load_state_dict(state)
            except Exception as error:
                if _is_ours(each):
                    raise
                raise UserError(
                    f"observer {each.name!r}: load_state_dict raised {in_a_line(error)}; "
                    "--debug shows where"
                ) from error


_METERING = {"batch_loaded", "batch_prepared", "micro_batch", "stepped", "interval", "record"}
"""Hooks in which halfstep's own observers look at a step, and change nothing that is trained."""


def _calls(observers: Sequence[Observer], hook: str) -> list[Callable[..., Any]]:
    """Return what to call for a hook, in order: our own that follow each other go together."""
    calls: list[Callable[..., Any]] = []
    having = [each for each in observers if overrides(each, hook)]
    for aside, each in groupby(having, lambda one: hook in _METERING and _is_ours(one)):
        methods = [getattr(one, hook) for one in each]
        calls += [partial(_aside, methods)] if aside else methods
    return calls


def _aside(methods: Sequence[Callable[..., Any]], *given: Any, **named: Any) -> list[Any]:
    """Call methods where nobody hears what they ask of torch; return their answers."""
    with step_observer.active.aside():
        return [method(*given, **named) for method in methods]


def _listed(answers: Any) -> list[Any]:
    return answers if isinstance(answers, list) else [answers]


def _is_ours(observer: Observer) -> bool:
    return type(observer).__module__.startswith("halfstep.")


def overrides(observer: Observer, hook: str) -> bool:
    """Tell whether an observer has a hook of its own."""
    return getattr(type(observer), hook) is not getattr(Observer, hook)


@contextmanager
def _all_of(makers: Sequence[Callable[[], AbstractContextManager[None]]]) -> Iterator[None]:
    with ExitStack() as stack:
        for make in makers:
            stack.enter_context(make())
        yield


def _end(observer: Observer, _: Any, error: BaseException | None, __: Any) -> None:
    observer.end(error)
