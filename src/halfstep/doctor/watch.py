"""Watches a program: takes in what happens at the points of `attach`, and fills the record.

Everything ordinary is cheap: order, version counters, one fused norm a step. When numbers go bad,
the step is investigated there and then, while its parameters are still what they were.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter, deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from halfstep.doctor.attach import Attachment
from halfstep.doctor.closely import KEPT, Look, is_sampled
from halfstep.doctor.evidence import (
    SIGNALS,
    Call,
    Ending,
    Evaluation,
    Evidence,
    Sample,
    Static,
    StepNumbers,
)
from halfstep.doctor.facts import (
    environment,
    learning_rate,
    model_facts,
    optimizer_facts,
    parameters_of,
    scaler_facts,
    state_step,
)
from halfstep.doctor.grammar import Grammar
from halfstep.doctor.internals import found_inf_of, loss_scale_of
from halfstep.doctor.investigation import Investigation
from halfstep.doctor.listener import Call as Heard
from halfstep.doctor.listener import Listener
from halfstep.doctor.modules import ModuleStack
from halfstep.doctor.nesting import tensors_in
from halfstep.doctor.numbers import Series
from halfstep.doctor.replay import bare
from halfstep.doctor.sites import Mark, calling_line, raising_line, site
from halfstep.doctor.tape import Entry, Tape, autocast_state, random_state
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from torch import nn
    from torch.optim import Optimizer

_GRADIENT_WRITERS = ("_foreach_norm", "norm", "linalg_vector_norm", "vector_norm")
SKIPS_WORTH_A_LOOK = (4, 16)
BUFFER_BYTES = 2**26
_lock = threading.Lock()
_active: list[Watch] = []


def _in_torch(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method, and the torch that it calls, work without being heard."""

    @functools.wraps(method)
    def quietly(watch: Watch, *args: Any, **kwargs: Any) -> Any:
        with watch.in_torch():
            return method(watch, *args, **kwargs)

    return quietly


class Watch:
    """Watches whatever trains in this thread, from `start` to `close`.

    Raises:
        ValueError: From `start`, if another watch is on.
    """

    def __init__(self) -> None:
        self.stack = ModuleStack()
        self.troubles: list[str] = []
        self._grammar = Grammar()
        self._tape = Tape()
        self._series = Series(self._on_bad)
        self._investigation = Investigation(self.stack)
        self._listener = Listener(self._heard)
        self._attachment: Attachment | None = None
        self._busy = False
        self._inside = 0
        self._thread = threading.get_ident()
        self._scaling: list[Any] = []
        self._stepping: list[ExitStack] = []
        self._models: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._scalers: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._scale_values: dict[int, int] = {}
        self._updates = 0
        self._history: WeakKeyDictionary[Optimizer, dict[str, int]] = WeakKeyDictionary()
        self._kept: list[Any] = []
        self._reached: set[int] = set()
        self._loss: torch.Tensor | None = None
        self._raw: torch.Tensor | None = None
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._look: Look | None = None
        self._moving: WeakKeyDictionary[nn.Module, list[torch.Tensor]] = WeakKeyDictionary()
        self._recent: deque[tuple[int, list[Entry]]] = deque(maxlen=3)
        self._calls: Counter[tuple[Any, ...]] = Counter()
        self._call_sites: dict[tuple[Any, ...], Mark | None] = {}
        self._evaluations = self._bad_evaluations = 0
        self._first_bad_evaluation: int | None = None
        self._evaluation_formats: set[str] = set()
        self._ending = Ending()
        self._evidence: Evidence | None = None

    # ---------------------------------------------------------------- from start to close

    def start(self) -> Watch:
        """Begin to watch."""
        with _lock:
            if _active:
                raise ValueError("this process is watched already; close() the other watch first")
            _active.append(self)
        self._attachment = Attachment(self)
        self._listener.start()
        return self

    def know(self, models: list[nn.Module], optimizers: list[Optimizer], scaler: Any) -> None:
        """Take in what was made before watching began."""
        for model in models:
            self._models.setdefault(model, 0)
        for optimizer in optimizers:
            self.on_new_optimizer(optimizer)
        if scaler is not None:
            self.on_new_scaler(scaler)

    def __enter__(self) -> Watch:
        return self if self._attachment is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.note_ending(error)
        self.close()

    def note_ending(self, error: BaseException) -> None:
        """Take in the exception that ended the program."""
        self._ending = Ending(
            type(error).__name__, str(error)[:2000], site(raising_line(error.__traceback__))
        )

    def close(self) -> Evidence:
        """Stop watching, look at what is left to look at, and return the record."""
        if self._evidence is not None:
            return self._evidence
        self._listener.stop()
        try:
            with self._quiet():
                self._series.settle()
                self._look_back()
            self._evidence = self._freeze()
        finally:
            self._detach()
        return self._evidence

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.remove()
        with _lock:
            if self in _active:
                _active.remove(self)

    def forget_process(self) -> None:
        """Stop in a process that was forked off."""
        self._thread = -1
        self._listener.stop()

    def is_here(self) -> bool:
        """Whether this is the loop's thread, and not doctor's own work."""
        return threading.get_ident() == self._thread and (not self._busy or self.stack.on)

    def is_outside(self) -> bool:
        """Whether no model runs."""
        return self._inside == 0 and not self._busy

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Do doctor's own work: nothing of it is an event of the program."""
        before, self._busy = self._busy, True
        try:
            with self._listener.mute():
                yield
        finally:
            self._busy = before

    @contextmanager
    def in_torch(self) -> Iterator[None]:
        """Let torch or a model work: its own calls are not the loop's."""
        self._inside += 1
        try:
            with self._listener.mute():
                yield
        finally:
            self._inside -= 1

    # ---------------------------------------------------------------- models and functions

    @_in_torch
    def on_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A model is called by the loop."""
        self._models[module] = self._models.get(module, 0) + 1
        if not torch.is_grad_enabled():
            result = original(module, *args, **kwargs)
            if not module.training:
                self._note_evaluation(module, args, kwargs, result)
            return result
        mark = calling_line()
        self._begin()
        entry = self._tape.open("module", module, args, kwargs)
        entry.mark = mark
        entry.autocast = autocast_state()
        entry.random = random_state(everything=True)
        entry.training = tuple(each.training for each in module.modules())
        entry.buffers = [(each, each.detach().clone()) for each in self._moving_buffers(module)]
        versions = self._versions(module)
        scale = self._tape.scale_of((args, kwargs))
        result = original(module, *args, **kwargs)
        self._note_moving(module, versions)
        self._count_call(type(bare(module)).__name__, (args, kwargs), result)
        self._tape.close(entry, result, scale)
        self._grammar.add(
            "forward",
            mark,
            model=self._grammar.number(module, "model"),
            autocast=",".join(format_name(dtype) for _, dtype in entry.autocast),
        )
        return result

    def _begin(self) -> None:
        if self._grammar.between_iterations:
            self._tape.next_iteration()

    def _moving_buffers(self, module: nn.Module) -> list[torch.Tensor]:
        if module not in self._moving:
            buffers = [each for each in module.buffers() if each.is_floating_point()]
            while sum(each.nbytes for each in buffers) > BUFFER_BYTES:
                buffers.remove(max(buffers, key=lambda each: each.nbytes))
            return buffers
        return self._moving[module]

    def _versions(self, module: nn.Module) -> list[tuple[torch.Tensor, int]] | None:
        if module in self._moving:
            return None
        return [(each, each._version) for each in self._moving_buffers(module)]

    def _note_moving(
        self, module: nn.Module, versions: list[tuple[torch.Tensor, int]] | None
    ) -> None:
        if versions is not None and module.training:
            self._moving[module] = [each for each, version in versions if each._version != version]

    def _note_evaluation(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        floats = [each for each in tensors_in(result) if each.is_floating_point()]
        self._evaluations += 1
        self._evaluation_formats |= {format_name(each.dtype) for each in floats}
        if any(each.device.type != "cpu" for each in floats):
            return  # Reading it would make the program wait.
        with self._quiet():
            bad = any(bool(each.sum(dtype=torch.float32).isnan()) for each in floats)
        if bad:
            self._bad_evaluations += 1
            if self._first_bad_evaluation is None:
                self._first_bad_evaluation = self._grammar.iteration
                with self._quiet():
                    entry = self._tape.open("module", module, args, kwargs)
                    entry.training = tuple(each.training for each in module.modules())
                    entry.autocast = autocast_state()
                    entry.mark = calling_line()
                    self._investigation.evaluation([entry], self._names(), self._grammar.iteration)

    def on_compiled(self, original: Any, args: Any, kwargs: Any) -> Any:
        """A compiled function is called by the loop."""
        if not self.is_outside():
            return original(*args, **kwargs)
        state = random_state()
        with self.in_torch():
            result = original(*args, **kwargs)
        self._record(Heard(original, args, kwargs, state), result)
        return result

    def _heard(self, call: Heard, result: Any) -> None:
        if self._busy or self._inside:
            return
        name = call.function.__name__
        if name in {"backward", "requires_grad_", "register_hook"}:
            return
        if name == "grad" and call.function is torch.autograd.grad:
            self._note_grad(call)
        elif name.endswith("_") and not name.endswith("__"):
            self._grammar.notice_writes(calling_line())
        elif name in _GRADIENT_WRITERS:
            self._note_read(call)
        self._record(call, result)

    def _record(self, call: Heard, result: Any) -> None:
        floats = self._count_call(call.function.__name__, (call.args, call.kwargs), result)
        if not floats:
            return
        needs_gradients = any(each.requires_grad for each in floats)
        if not needs_gradients and not self._tape.holds((call.args, call.kwargs)):
            return
        if needs_gradients:
            self._begin()
        entry = self._tape.open("call", call.function, call.args, call.kwargs)
        entry.autocast, entry.mark, entry.random = autocast_state(), calling_line(), call.random
        self._tape.close(entry, result, self._tape.scale_of((call.args, call.kwargs)))

    def _count_call(self, name: str, given: Any, result: Any) -> list[torch.Tensor]:
        floats = [each for each in tensors_in(result) if each.is_floating_point()]
        formats = tuple(str(each.dtype) for each in tensors_in(given) if each.is_floating_point())
        key = (
            name,
            formats[:4],
            str(floats[0].dtype) if floats else "",
            torch.is_grad_enabled(),
            autocast_state(),
        )
        if key not in self._calls:
            self._call_sites[key] = calling_line()
        self._calls[key] += 1
        return floats

    def _note_grad(self, call: Heard) -> None:
        self._grammar.add(
            "grad",
            calling_line(),
            scaled=self._tape.scale_of(call.args[:1]) is not None,
            create_graph=bool(call.kwargs.get("create_graph", False)),
        )

    def _note_read(self, call: Heard) -> None:
        given = {id(each) for each in tensors_in((call.args, call.kwargs))}
        for optimizer in self._grammar.optimizers():
            gradients = self._grammar.state(optimizer)
            if any(id(probe.grad) in given for probe in gradients.probes if probe.grad is not None):
                self._grammar.add(
                    "read",
                    calling_line(),
                    optimizer=self._grammar.number(optimizer, "optimizer"),
                    scaled=gradients.state() == "scaled",
                )

    # ---------------------------------------------------------------- backward

    @_in_torch
    def on_backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        """A backward runs."""
        if self._busy:
            return original(*args, **kwargs)
        mark = calling_line()
        tensors = args[0] if args else kwargs.get("tensors")
        first = next(tensors_in(tensors), None)
        self._begin()
        self._grammar.notice_writes(mark)
        scale = self._tape.scale_of(tensors)
        entry = self._tape.open("backward", None, (tensors,), {"grad_tensors": _second(args, kwargs)})
        entry.mark = mark
        if first is not None:
            entry.value = first.detach()
            self._loss = self._raw if scale is not None and self._raw is not None else entry.value
            if self._loss.numel() != 1:
                self._loss = None
        self._tape.close(entry, None, None)
        autocast = bool(autocast_state())
        result = original(*args, **kwargs)
        self._grammar.backward(
            mark,
            scale,
            autocast=autocast,
            loss_format="" if first is None else format_name(first.dtype),
        )
        return result

    # ---------------------------------------------------------------- loss scaling

    @_in_torch
    def on_scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        """A loss is multiplied by the loss scale."""
        if self._busy:
            return original(scaler, outputs)
        mark = calling_line()
        self._begin()
        entry = self._tape.open("scale", None, (outputs,), {})
        entry.mark, entry.autocast = mark, autocast_state()
        result = original(scaler, outputs)
        value = loss_scale_of(scaler)
        entry.value = None if value is None else value.detach().clone()
        first = next(tensors_in(outputs), None)
        self._raw = first.detach() if first is not None and first.numel() == 1 else None
        self._tape.close(entry, result, self._updates)
        self._grammar.add(
            "scale",
            mark,
            scaler=self._number(scaler),
            format="" if first is None else format_name(first.dtype),
        )
        return result

    @_in_torch
    def on_unscale(self, original: Any, scaler: Any, optimizer: Optimizer) -> Any:
        """A scaler divides gradients."""
        inner = scaler in self._scaling
        if not inner and not self._busy:
            self._grammar.notice_writes(calling_line())
            self._grammar.add(
                "unscale",
                calling_line(),
                scaler=self._number(scaler),
                optimizer=self._grammar.number(optimizer, "optimizer"),
            )
        result = original(scaler, optimizer)
        self._grammar.unscaled(optimizer)
        return result

    @_in_torch
    def on_scaler_step(
        self, original: Any, scaler: Any, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> Any:
        """A scaler steps an optimizer, or skips it."""
        mark = calling_line()
        self._grammar.notice_writes(mark)
        history = self._of(optimizer)
        steps = history["steps"]
        scale = loss_scale_of(scaler)
        history["scale"] = None if scale is None else scale.detach().clone()  # type: ignore[assignment]  # read late
        self._scaling.append(scaler)
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._scaling.pop()
        skipped = history["steps"] == steps
        self._grammar.scaler_stepped(mark, self._number(scaler), optimizer, skipped=skipped)
        if skipped:
            history["skipped"] += 1
            found = found_inf_of(scaler, optimizer)
            self._measure(optimizer, None, skipped=True, found_inf=found[0] if found else None)
        return result

    @_in_torch
    def on_update(self, original: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
        """The loss scale may change."""
        self._grammar.updated(calling_line(), self._number(scaler))
        self._updates += 1
        return original(scaler, *args, **kwargs)

    def on_new_scaler(self, scaler: Any) -> None:
        """A scaler was made."""
        if scaler.is_enabled():
            self._scalers[scaler] = {
                "restored": False,
                "created_in": self._grammar.iteration,
                "mark": calling_line(),
            }
            self._kept.append(scaler)
            self._number(scaler)

    def on_loaded_scaler(self, scaler: Any) -> None:
        """A state was loaded into a scaler."""
        if scaler in self._scalers:
            self._scalers[scaler]["restored"] = True

    def _number(self, scaler: Any) -> int:
        if scaler not in self._scalers:
            self._scalers[scaler] = {"restored": False, "created_in": 0, "mark": None}
            self._kept.append(scaler)
        return self._grammar.number(scaler, "scaler")

    # ---------------------------------------------------------------- optimizers

    def on_new_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""
        self._kept.append(optimizer)
        self._of(optimizer)
        self._grammar.refresh(optimizer)

    def on_changed_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer got more parameters."""
        if optimizer in self._history:
            self._grammar.refresh(optimizer)

    def on_loaded_optimizer(self, optimizer: Optimizer) -> None:
        """A state was loaded into an optimizer."""
        self._of(optimizer)["resumed_at"] = state_step(optimizer)

    def _of(self, optimizer: Optimizer) -> dict[str, int]:
        if optimizer not in self._history:
            if not any(each is optimizer for each in self._kept):
                self._kept.append(optimizer)
            self._history[optimizer] = {"steps": 0, "skipped": 0, "resumed_at": state_step(optimizer)}
            self._grammar.number(optimizer, "optimizer")
        return self._history[optimizer]

    @_in_torch
    def on_zero(self, original: Any, owner: Any, args: Any, kwargs: Any) -> Any:
        """Gradients are cleared."""
        mark = calling_line()
        result = original(owner, *args, **kwargs)
        if isinstance(owner, torch.optim.Optimizer):
            self._of(owner)
            self._grammar.zeroed(mark, [owner])
        else:
            mine = {id(each) for each in owner.parameters()}
            self._grammar.zeroed(
                mark,
                [
                    each
                    for each in self._grammar.optimizers()
                    if mine.issuperset(map(id, self._grammar.state(each).probes))
                ],
            )
        return result

    def on_schedule(self, original: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
        """A scheduler moves."""
        if not self._inside and not getattr(scheduler, "_is_initial", False):
            optimizer = getattr(scheduler, "optimizer", None)
            if optimizer is not None:
                self._of(optimizer)
                self._grammar.add(
                    "schedule",
                    calling_line(),
                    optimizer=self._grammar.number(optimizer, "optimizer"),
                    skipped=self._grammar.state(optimizer).skipped,
                )
        self._inside += 1
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._inside -= 1

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """An optimizer is about to step; with a closure, once that has run."""
        self._of(optimizer)
        closure = kwargs.get("closure") or next((each for each in args[1:] if callable(each)), None)
        if closure is None:
            self._about_to_step(optimizer)
            return None
        first = [True]

        @functools.wraps(closure)
        def watched() -> Any:
            result = closure()
            if first.pop() if first else False:
                self._about_to_step(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return tuple(watched if each is closure else each for each in args), kwargs

    @_in_torch
    def _about_to_step(self, optimizer: Optimizer) -> None:
        history = self._of(optimizer)
        history["steps"] += 1
        mark = calling_line()
        if not self._scaling:
            self._grammar.notice_writes(mark)
        self._grammar.step(mark, optimizer, by_scaler=bool(self._scaling))
        gradients = [each.grad for each in parameters_of(optimizer) if each.grad is not None]
        if not self._scaling:
            history["scale"] = None  # type: ignore[assignment]  # read late
        self._note_reached(optimizer)
        self._measure(
            optimizer, gradients, skipped=False, found_inf=getattr(optimizer, "found_inf", None)
        )
        if is_sampled(history["steps"] - 1):
            with self._quiet():
                number = self._grammar.number(optimizer, "optimizer")
                names = {id(each): name for name, each in self._names().items()}
                self._look = Look(optimizer, number, self._grammar.iteration, names)
        stack = ExitStack()
        stack.enter_context(self.in_torch())
        self._stepping.append(stack)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        if self._stepping:
            self._stepping.pop().close()
        if self._look is not None:
            with self._quiet():
                self._samples.extend(self._look.after())
            self._look = None

    def _note_reached(self, optimizer: Optimizer) -> None:
        if self._of(optimizer)["steps"] > 2 and self._grammar.iteration % 50:
            return
        for model in list(self._models):
            for each in model.parameters():
                if each.grad is not None:
                    self._reached.add(id(each))

    def _measure(
        self,
        optimizer: Optimizer,
        gradients: list[torch.Tensor] | None,
        *,
        skipped: bool,
        found_inf: torch.Tensor | None,
    ) -> None:
        if not self._recent or self._recent[-1][0] != self._grammar.iteration:
            self._recent.append((self._grammar.iteration, self._tape.snapshot()))
        with self._quiet():
            self._series.take(
                self._grammar.iteration,
                self._grammar.number(optimizer, "optimizer"),
                learning_rate=learning_rate(optimizer),
                loss=self._loss,
                gradients=gradients,
                scale=self._of(optimizer).get("scale"),  # type: ignore[arg-type]  # read late
                skipped=skipped,
                found_inf=found_inf,
            )

    # ---------------------------------------------------------------- when numbers go bad

    def _on_bad(self, step: StepNumbers) -> None:
        entries = next((tape for number, tape in self._recent if number == step.iteration), None)
        if entries is None:
            return
        run = self._series.run_of_skips
        if not step.skipped:
            why = "loss or gradients are not finite"
        elif step.loss is not None and not abs(step.loss) < float("inf"):
            why = "the loss is not finite"
        elif run in SKIPS_WORTH_A_LOOK:
            why = f"{run} steps in a row were skipped"
        elif step.scale is not None and step.scale < 1:
            why = "the loss scale fell below 1"
        else:
            return
        with self._quiet():
            self._investigation.step(
                entries, self._names(), step.iteration, why, scale=step.scale
            )

    def _look_back(self) -> None:
        names = self._names()
        entries = self._tape.snapshot()
        iteration = self._grammar.iteration
        if not any(each.kind in {"module", "call"} for each in entries):
            if not self._recent:
                return
            iteration, entries = self._recent[-1]
        if not self._investigation.done and not self._tape.missing:
            self._investigation.last(entries, names, iteration, healthy=not self._ending.kind)

    def _names(self) -> dict[str, torch.Tensor]:
        names: dict[str, torch.Tensor] = {}
        several = len(self._models) > 1
        for place, model in enumerate(list(self._models)):
            prefix = f"{type(bare(model)).__name__}[{place}]." if several else ""
            for name, each in bare(model).named_parameters():
                names[prefix + name] = each
        known = {id(each) for each in names.values()}
        for number, optimizer in enumerate(self._grammar.optimizers()):
            for place, each in enumerate(parameters_of(optimizer)):
                if id(each) not in known:
                    names[f"optimizer {number}, parameter {place}"] = each
        return names

    # ---------------------------------------------------------------- the record

    def _freeze(self) -> Evidence:
        optimizers = [each for each in self._grammar.optimizers() if each in self._history]
        owned = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
        models = list(self._models)
        known = {id(each) for model in models for each in model.parameters()}
        scalers = sorted(self._scalers, key=lambda each: self._grammar.number(each, "scaler"))
        found = self._investigation
        return Evidence(
            signals=SIGNALS,
            environment=environment(self._names().values()),
            static=Static(
                models=tuple(
                    model_facts(each, owned, self._reached, self._models[each]) for each in models
                ),
                optimizers=tuple(
                    optimizer_facts(each, optimizers, known, self._history[each])
                    for each in optimizers
                ),
                scalers=tuple(
                    scaler_facts(each, **self._scalers[each]) for each in scalers
                ),
            ),
            loop=self._grammar.freeze(),
            numbers=self._series.freeze(),
            samples=tuple(self._samples),
            births=tuple(found.births),
            replays=tuple(found.replays),
            precision=found.precision,
            inputs=tuple(found.inputs),
            calls=tuple(self._frozen_calls()),
            evaluation=Evaluation(
                self._evaluations,
                self._bad_evaluations,
                self._first_bad_evaluation,
                tuple(sorted(self._evaluation_formats)),
            ),
            ending=self._ending,
        )

    def _frozen_calls(self) -> Iterator[Call]:
        for key, count in self._calls.items():
            name, given, result, gradients, autocast = key
            yield Call(
                name=name,
                formats=tuple(map(_format, given)),
                result=_format(result) if result else "",
                gradients=gradients,
                autocast=",".join(format_name(dtype) for _, dtype in autocast),
                count=count,
                site=site(self._call_sites[key]),
            )


def _format(dtype: str) -> str:
    return format_name(getattr(torch, dtype.removeprefix("torch.")))


def _second(args: Any, kwargs: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("grad_tensors")

