"""Runs the calls on a tape again, and differentiates their losses.

The random generators, buffers and training modes are set to their state at each call; afterwards,
they are restored. Gradients are computed with `autograd.grad`, so `.grad` is not changed and its
hooks do not run.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call
from torch.nn.parallel import DataParallel, DistributedDataParallel

from halfstep.doctor.internals import no_reentrant_checkpoints
from halfstep.doctor.replay.influence.forward import Forward
from halfstep.doctor.replay.runs import Outcome
from halfstep.doctor.replay.tracer import Tracer
from halfstep.doctor.tape.tape import Entry, Slot, random_state
from halfstep.doctor.tensors.nesting import exchange, tensors_in
from halfstep.doctor.tensors.widen import Widen, widened
from halfstep.mechanisms.cpu_half import cpu_half

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from halfstep.doctor.replay.statements import Changed

BOUNDARY = __file__  # The frames above the last one of this file are not the program's.
_FREED = "Trying to backward through the graph a second time"
_INCOMPLETE = (
    "a tensor in the graph of the loss comes from an earlier step, or from a call that doctor does "
    "not record, such as torch.vmap"
)


class _ForgottenError(Exception):
    """A call needs the result of a call that is no longer on the tape."""


class Playback:
    """Runs the calls on a tape.

    Args:
        entries: The calls.
        models: The models among them, without parallel wrappers.
        parameters: The parameters to differentiate for.
        statements: Changed statements of the loop, which run instead of their calls.
        differentiates: Whether to run the backward passes.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        models: Sequence[nn.Module],
        parameters: Sequence[torch.Tensor],
        statements: Sequence[Changed] = (),
        *,
        differentiates: bool = True,
    ) -> None:
        self._entries, self._models = entries, models
        self._parameters, self._statements = parameters, statements
        self._differentiates = differentiates

    def run(self, mode: Any, scale: float | None, leaves: Mapping[Any, torch.Tensor]) -> Outcome:
        """Run the step, and return its results, or a note why it did not run to its end.

        Args:
            mode: A dispatch mode; None for none.
            scale: Another loss scale; None for the loss scale of the step.
            leaves: Replacements of parameters, by identity, and of earlier results, by slot.
        """
        outcome = Outcome([], {}, 1.0, [])
        quiet = torch.autograd.set_detect_anomaly(False)
        with quiet, _kept(self._models), no_reentrant_checkpoints(), ExitStack() as stack:
            if any(each.like_cuda for each in self._entries):
                stack.enter_context(cpu_half())  # The program may have left its own `cpu_half()`.
            if mode is not None:
                stack.enter_context(mode)
            try:
                self._run_entries(outcome, scale, mode, leaves)
            except Exception as error:  # noqa: BLE001  # it ran once, so the replay is at fault
                is_incomplete = isinstance(error, _ForgottenError) or _FREED in str(error)
                outcome.note = _INCOMPLETE if is_incomplete else f"{type(error).__name__}: {error}"
        return outcome

    def _run_entries(
        self, outcome: Outcome, scale: float | None, mode: Any, leaves: Mapping[Any, torch.Tensor]
    ) -> None:
        slots: dict[int, torch.Tensor] = {}
        is_scaled = any(each.kind == "scale" for each in self._entries)
        has_backward = any(each.kind == "backward" for each in self._entries)
        fill = _filling(slots, leaves, wide=isinstance(mode, Widen))
        result: Any = None
        for entry in self._entries:
            changed = next((each for each in self._statements if id(entry) in each.entries), None)
            if changed is not None and entry is not changed.last:
                continue
            given = ((), {}) if changed is not None else (entry.args, entry.kwargs)
            args, kwargs = exchange(given, fill)
            _begin(mode, entry, fill)
            if entry.random is not None:
                entry.random.restore()
            if entry.kind == "backward":
                losses = args[0]
                if scale is not None and not is_scaled:
                    outcome.scale, losses = scale, _multiplied(losses, scale)
                self._differentiate(outcome, losses, kwargs.get("grad_tensors"), leaves)
                continue
            if entry.function is torch.autograd.grad and not has_backward:
                args = _scaled_grad(outcome, args, kwargs, None if is_scaled else scale)
            # Gradients are computed for parameters that require none in the program, but a result
            # that the program detached from the graph must be so where no gradients are computed.
            enabled = self._differentiates or entry.has_gradients
            with _autocast(entry.autocast), torch.set_grad_enabled(enabled):
                if changed is not None:
                    result = changed.value(fill)
                elif entry.kind == "scale":
                    assert entry.value is not None
                    outcome.scale = float(entry.value) if scale is None else scale
                    result = _multiplied(args[0], outcome.scale)
                else:
                    result = _called(entry, args, kwargs, leaves)
            slots |= zip(entry.results, tensors_in(result), strict=False)
        if not outcome.losses:
            outcome.ends += [each.detach() for each in tensors_in(result)]

    def _differentiate(
        self, outcome: Outcome, losses: Any, directions: Any, leaves: Mapping[Any, torch.Tensor]
    ) -> None:
        if not self._differentiates:
            outcome.losses += tensors_in(losses)
            return
        roots = [each for each in tensors_in(losses) if each.requires_grad]
        wanted = [each for each in self._parameters if each.requires_grad]
        gradients = torch.autograd.grad(
            roots,
            [leaves.get(id(each), each) for each in wanted],
            grad_outputs=list(tensors_in(directions)) or None,
            retain_graph=True,
            allow_unused=True,
        )
        for parameter, gradient in zip(wanted, gradients, strict=True):
            if gradient is None:
                continue
            before = outcome.gradients.get(id(parameter))
            outcome.gradients[id(parameter)] = gradient if before is None else before + gradient
        outcome.losses += [each.detach() for each in roots]
        outcome.ends += [each.detach() for each in roots]
        outcome.ends += [each for each in gradients if each is not None]


def _begin(mode: Any, entry: Entry, fill: Callable[[Any], Any]) -> None:
    """Tell a mode which call begins, and with which arguments."""
    if isinstance(mode, Tracer | Forward):
        mode.begin(entry)
    if isinstance(mode, Forward) and entry.kind == "module":
        mode.note_inputs(entry, fill)


def _filling(
    slots: dict[int, torch.Tensor], leaves: Mapping[Any, torch.Tensor], *, wide: bool
) -> Callable[[Any], Any]:
    """Return a function that replaces slots and leaves in arguments by the replay's tensors.

    Args:
        slots: Results of the replay so far, by number.
        leaves: Replacements of parameters, by identity, and of earlier results, by slot.
        wide: Whether to cast other half-precision arguments to fp32.
    """

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            if leaf in leaves:
                return leaves[leaf]
            if leaf.number not in slots:
                raise _ForgottenError
            return slots[leaf.number]
        if wide and not getattr(leaf, "requires_grad", False):
            return widened(leaf)  # Otherwise, a half batch would be multiplied by fp32 weights.
        return leaves.get(id(leaf), leaf)

    return fill


def bare(model: nn.Module) -> nn.Module:
    """Return the model inside a parallel wrapper, which would wait for other processes."""
    return model.module if isinstance(model, DistributedDataParallel | DataParallel) else model


def _called(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Mapping[Any, torch.Tensor]
) -> Any:
    if entry.kind != "module":
        return entry.function(*args, **kwargs)
    return _call_module(entry, args, kwargs, leaves)


def _call_module(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Mapping[Any, torch.Tensor]
) -> Any:
    model = bare(entry.function)
    for module, training in zip(entry.modules, entry.training, strict=True):
        module.training = training
    if entry.buffers is not None:
        entry.buffers.restore()
    wide = {name: leaves[id(each)] for name, each in model.named_parameters() if id(each) in leaves}
    return functional_call(model, wide, args, kwargs) if wide else model(*args, **kwargs)


def _scaled_grad(
    outcome: Outcome, args: tuple[Any, ...], kwargs: Mapping[str, Any], scale: float | None
) -> tuple[Any, ...]:
    """Return the arguments of a call of `autograd.grad` in a step without a backward.

    Args:
        outcome: Receives the tensors that the call starts from, and the loss scale.
        args: The arguments in the program.
        kwargs: The keyword arguments; with `create_graph`, the step goes on from the gradients.
        scale: Another loss scale; None for none.
    """
    if not args or kwargs.get("create_graph"):
        return args
    if scale is not None:
        outcome.scale, args = scale, (_multiplied(args[0], scale), *args[1:])
    outcome.differentiated += [each.detach() for each in tensors_in(args[0])]
    return args


def _multiplied(value: Any, scale: float) -> Any:
    def multiply(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf * torch.full((), scale, dtype=torch.float32, device=leaf.device)

    return exchange(value, multiply)


@contextmanager
def _autocast(state: tuple[tuple[str, torch.dtype], ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            dtype = dict(state).get(device)
            # No cache, because the program's cache may contain weights from before its last step.
            stack.enter_context(
                torch.autocast(device, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
            )
        yield


@contextmanager
def _kept(models: Sequence[nn.Module]) -> Iterator[None]:
    """Enable gradients; restore generators, buffers and training modes after the block."""
    state = random_state(everything=True)
    buffers = [(each, each.clone()) for model in models for each in model.buffers()]
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        with torch.enable_grad():
            yield
    finally:
        for buffer, value in buffers:
            buffer.data.copy_(value)  # Through .data, so that its version does not change.
        for module, training in modes:
            module.training = training
        state.restore()
