"""Steps whose gradients come from `torch.func`, as ordinary steps that can be replayed.

Inside of a transform, tensors are of another kind, and no backward pass runs. So the function that
is differentiated runs once more without the transform, at the first loss that is not finite, or at
the end. `functional_call` then loads the parameters into its module, which gets them back.
"""

from __future__ import annotations

import contextlib
import copy
import io
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.movement.directions import Directions
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.tape import random_state
from halfstep.doctor.tensors.nesting import exchange, tensors_in
from halfstep.doctor.tensors.summary import is_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Entry

_PROBES = 4


class FunctionalSteps(Signal):
    """Keeps the latest call of such a gradient."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._latest: tuple[Any, tuple[int, ...], bool, tuple[Any, ...], dict[str, Any]] | None
        self._latest = None
        self._is_done = self._runs = self._has_others = self._is_unknown = False
        self._known: dict[tuple[int, ...], nn.Module] = {}
        self._before: list[tuple[torch.Tensor, torch.Tensor, bool]] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the functions of `torch.func`."""
        for name in ("grad", "grad_and_value"):
            yield Hook(torch.func, name, self.watched.in_loop(self._transforms))
        yield Hook(torch.func, "functional_call", self.watched.in_loop(self._on_call))

    @property
    def is_whole(self) -> bool:
        """Whether all gradients of the program come from such calls."""
        return self._latest is not None and not self._has_others

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Note a backward pass."""
        del losses
        self._has_others = True

    def _transforms(
        self, original: Any, function: Any, argnums: Any = 0, has_aux: Any = False
    ) -> Any:
        differentiates = original(function, argnums, has_aux)
        numbers = argnums if isinstance(argnums, tuple) else (argnums,)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = differentiates(*args, **kwargs)
            if torch.compiler.is_compiling() or not self.watched.is_in_loop():
                return result
            with self.watched.guard.own():
                if not any(map(is_functorch_tensor, tensors_in((args, kwargs)))):
                    self._latest = function, numbers, bool(has_aux), args, kwargs
                    with_value = original.__name__ == "grad_and_value"
                    self._follow(args, numbers, result, has_aux=has_aux, with_value=with_value)
                    self._look(tensors_in(result))
                if not self.watched.registry.optimizers.notes:
                    self.watched.grammar.stepped_by_hand()
            return result

        return call

    def _follow(
        self, args: Any, numbers: Any, result: Any, *, has_aux: bool, with_value: bool
    ) -> None:
        """Follow the weights of a model, which are several tensors in one argument."""
        slopes, value = result if has_aux or with_value else (result, None)
        values = tensors_in(value) if with_value else []  # The loss comes first.
        weights = [args[each] for each in numbers if each < len(args)]
        if len(weights) == 1 and not isinstance(weights[0], torch.Tensor):
            self.watched[Directions].take(tensors_in(weights), tensors_in(slopes), values[:1])

    def _look(self, result: list[torch.Tensor]) -> None:
        """Examine the first step that is not finite; on an accelerator, only the last one."""
        probes = [each for each in result[:: max(1, len(result) // _PROBES)] if not each.is_cuda]
        if not self._is_done and not all(map(is_finite, probes)):
            self._is_done = True
            self.examine()

    def examine(self) -> None:
        """Examine the latest call."""
        latest, self._latest = self._latest, None
        if latest is None:
            return
        self._is_unknown = False
        try:
            entries = self._run(*latest)
            watched = self.watched
            names, iteration = watched.registry.names(), watched.grammar.iteration
            watched[Investigation].last(entries, names, iteration, error="")
        finally:
            self._put_back()

    def _run(
        self,
        function: Any,
        numbers: tuple[int, ...],
        has_aux: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[Entry]:
        """Return the calls of a step that differentiates the same function."""
        given = tuple(
            exchange(each, _leaf) if number in numbers else each for number, each in enumerate(args)
        )
        tape, listener = self.watched.tape, self.watched.listener
        tape.next_iteration()
        was_on, self._runs, before = listener.here, True, random_state(everything=True)
        if not was_on:
            listener.start()
        try:
            silent = contextlib.redirect_stdout(io.StringIO())
            with self.watched.guard.as_the_loop(), torch.enable_grad(), silent:
                result = function(*given, **kwargs)
        except Exception:  # noqa: BLE001  # The function may work once only.
            return []
        finally:
            before.restore()
            self._runs = False
            if not was_on:
                listener.stop()
        loss = result[0] if has_aux else result
        if self._is_unknown or not (isinstance(loss, torch.Tensor) and loss.requires_grad):
            return []
        self.watched[Directions].judge([loss])
        entry = tape.open("backward", None, (loss,), {"grad_tensors": None})
        entry.value = loss.detach()
        tape.close(entry, None, None)
        return tape.snapshot()

    def _on_call(self, original: Any, module: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._runs:
            return original(module, state, *args, **kwargs)
        given = args[0] if args else kwargs.get("args", ())
        named = (args[1] if len(args) > 1 else kwargs.get("kwargs")) or {}
        used = None
        with self.watched.guard.own():
            used = self._loaded(module, state)
        if used is None:
            self._is_unknown = True
            return original(module, state, *args, **kwargs)
        return used(*(given if isinstance(given, tuple) else (given,)), **named)

    def _loaded(self, module: nn.Module, state: Any) -> nn.Module | None:
        """Return the module with these parameters, or a copy if they get no gradients.

        Returns:
            None for a second set of parameters with gradients, and for parameters that the function
            itself computes.
        """
        parts = state if isinstance(state, tuple | list) else (state,)
        values = {name: value for part in parts for name, value in part.items()}
        key = (id(module), *map(id, values.values()))
        if key in self._known:
            return self._known[key]
        needed = [each for each in values.values() if each.requires_grad]
        is_second = any(self._known[each] is module for each in self._known)
        if needed and (is_second or not all(each.is_leaf for each in needed)):
            return None
        if any(map(is_functorch_tensor, values.values())):  # A transform runs in the function.
            return None
        used = module if needed else copy.deepcopy(module)
        own = {**dict(used.named_buffers()), **dict(used.named_parameters())}
        for name, value in values.items():
            if used is module:
                mine = own[name]
                self._before.append((mine, mine.detach().clone(), mine.requires_grad))
                self.watched.registry.loose += [own[name]] * value.requires_grad
            own[name].data.copy_(value.detach())
            if isinstance(own[name], nn.Parameter):
                own[name].requires_grad_(value.requires_grad)
        self._known[key] = used
        return used

    def _put_back(self) -> None:
        for tensor, value, needs in self._before:
            tensor.data.copy_(value)
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(needs)
        self._before.clear()
        self._known.clear()
        self.watched.registry.loose.clear()


def _leaf(value: Any) -> Any:
    """Return a copy of a tensor that requires gradients."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().clone().requires_grad_()
    return value
