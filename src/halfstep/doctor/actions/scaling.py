"""The loop's calls of gradient scalers."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from halfstep.doctor.internals import device_of, found_inf_of, loss_scale_of, node_number
from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.tape import Multiplier, autocast_state
from halfstep.doctor.tensors.graph import scaled_terms
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Entry

_LOSSES = 64


class Scaling(Signal):
    """Follows every enabled `torch.amp.GradScaler`.

    Attributes:
        loss: The latest loss that was scaled, before scaling; None if it was not a single number.
        off: Whether torch has switched off a scaler for CUDA, because there is no GPU.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._guard, self._grammar = watched.guard, watched.grammar
        self._tape, self._registry = watched.tape, watched.registry
        self._stepping: list[Any] = []
        self._updates = 0
        self._losses: OrderedDict[int, Multiplier] = OrderedDict()
        self._latest: float | None = None
        self.loss: torch.Tensor | None = None
        self.off = False

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of a scaler's methods."""
        kind = torch.amp.GradScaler
        yield Hook(kind, "__init__", self.watched.afterwards(self.on_new_scaler))
        yield Hook(kind, "load_state_dict", self.watched.afterwards(self._on_loaded))
        yield Hook(kind, "get_scale", self._if_enabled(self._on_get_scale))
        yield Hook(kind, "scale", self._if_enabled(self._on_scale))
        yield Hook(kind, "unscale_", self._if_enabled(self._on_unscale))
        yield Hook(kind, "step", self._if_enabled(self._on_step))
        yield Hook(kind, "update", self._if_enabled(self._on_update))

    def _if_enabled(self, told: Callable[..., Any]) -> Callable[[Any], Any]:
        watched = self.watched

        def make(original: Any) -> Any:
            def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
                if not (scaler.is_enabled() and watched.is_here()):
                    return original(scaler, *args, **kwargs)
                return told(original, scaler, args, kwargs)

            return call

        return make

    @property
    def steps(self) -> bool:
        """Whether a scaler's `step` is running."""
        return bool(self._stepping)

    def undoes(self, number: Any) -> bool:
        """Return whether a number or its inverse is the loss scale that the loop last read.

        Args:
            number: A factor or divisor in the loop's code; tensors give False.
        """
        return abs(self.power_of(number)) == 1

    def power_of(self, number: Any) -> int:
        """Return which power of the loss scale that the loop last read a number is; 0 for none.

        Args:
            number: A factor or divisor in the loop's code; tensors give 0.
        """
        if self._latest is None or not isinstance(number, int | float) or not number:
            return 0
        for power in (1, -1, 2, -2):
            known = self._latest**power
            if abs(number - known) <= 1e-6 * known:
                return power
        return 0

    @contextmanager
    def _theirs(
        self,
        call: str,
        mark: Mark | None,
        scaler: Any,
        optimizer: Optimizer | None = None,
    ) -> Iterator[None]:
        """Run a scaler's method in the block; record an error, because the loop may catch it."""
        try:
            with self._guard.inside():
                yield
        except Exception as error:
            with self._guard.own():
                message = str(error).partition("\n")[0]
                self._grammar.raised(mark, call, message, self._number(scaler), optimizer)
            raise

    def _on_scale(self, original: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
        entry, mark = None, None
        outputs = args[0] if args else kwargs.get("outputs")
        with self._guard.own():
            entry = self.open(outputs)
            mark = entry.mark
        with self._theirs("scale", mark, scaler):
            result = original(scaler, *args, **kwargs)
        with self._guard.own():
            assert entry is not None
            self.close(entry, scaler, loss_scale_of(scaler), outputs, result, given=outputs)
        return result

    def open(self, outputs: Any) -> Entry:
        """Return a tape entry for the multiplication of a loss, which is about to run."""
        self.watched.begin()
        entry = self._tape.open("scale", None, (outputs,), {})
        entry.mark, entry.autocast = calling_line(), autocast_state()
        return entry

    def close(
        self,
        entry: Entry,
        scaler: Any,
        scale: torch.Tensor | None,
        outputs: Any,
        result: Any,
        *,
        given: Any,
    ) -> None:
        """Record a multiplication.

        Args:
            entry: The entry that `open` returned.
            scaler: The scaler.
            scale: The loss scale.
            outputs: The loss before scaling.
            result: The scaled loss.
            given: The loss in the format in which it was multiplied.
        """
        entry.value = None if scale is None else scale.detach().clone()
        losses = tensors_in(outputs)
        single = bool(losses) and losses[0].numel() == 1
        self.loss = losses[0].detach() if single else None
        already = self._tape.scale_of(outputs) is not None
        self._tape.close(entry, result, self.multiplier(scaler))
        self._keep_nodes(tensors_in(result), self.multiplier(scaler))
        formats = [format_name(each.dtype) for each in tensors_in(given)]
        self._grammar.add(
            "scale",
            entry.mark,
            scaler=self._number(scaler),
            format=formats[0] if formats else "",
            already=already,
        )

    def _keep_nodes(self, losses: list[torch.Tensor], scale: Multiplier) -> None:
        for each in losses:
            if each.grad_fn is not None:
                self._losses[node_number(each.grad_fn)] = scale
                if len(self._losses) > _LOSSES:
                    self._losses.popitem(last=False)

    def terms(self, losses: Sequence[torch.Tensor]) -> list[tuple[Multiplier, frozenset[int]]]:
        """Return losses of different scalers in a sum, with the leaves that they reach.

        Args:
            losses: The tensors from which a backward pass starts.

        Returns:
            The scale and the `id` of the leaves of each; empty if one scaler scaled all of them.
        """
        if len(self._registry.scalers.notes) == 1:
            return []
        return scaled_terms(losses, self._losses)

    def multiplier(self, scaler: Any) -> Multiplier:
        """Return a reference to the current value of a scaler's loss scale."""
        return Multiplier(self._number(scaler), self._updates)

    def _on_get_scale(self, original: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
        with self._guard.inside():
            result = original(scaler, *args, **kwargs)
        if self._guard.is_outside:
            self._latest = result
        return result

    def _on_unscale(self, original: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
        optimizer = self._wrapped(args[0] if args else kwargs["optimizer"])
        if optimizer is None:
            return original(scaler, *args, **kwargs)
        mark = None
        with self._guard.own():
            self._registry.optimizer(optimizer)
            mark = calling_line()
            if scaler not in self._stepping:
                self._grammar.notice_writes(mark)
                self._grammar.unscale(mark, self._number(scaler), optimizer)
        with self._theirs("unscale_", mark, scaler, optimizer):
            result = original(scaler, *args, **kwargs)
        with self._guard.own():
            self._grammar.unscaled(optimizer)
        return result

    def _on_step(self, original: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
        given = args[0] if args else kwargs["optimizer"]
        optimizer = self._wrapped(given)
        if optimizer is None:
            return original(scaler, *args, **kwargs)
        mark = None
        with self._guard.own():
            mark = calling_line()
            self._grammar.notice_writes(mark)

        def found_inf() -> torch.Tensor | None:
            return next(iter(found_inf_of(scaler, given)), None)

        with (
            self.step(scaler, optimizer, mark, found_inf),
            self._theirs("step", mark, scaler, optimizer),
        ):
            return original(scaler, *args, **kwargs)

    def _wrapped(self, given: Any) -> Optimizer | None:
        """Return the optimizer that the loop gives to a scaler, or that such an object wraps.

        Args:
            given: An optimizer, or an object with the parameter groups of one.

        Returns:
            An optimizer of torch's class; None for an object that wraps none.
        """
        if isinstance(given, Optimizer):
            return given
        groups = getattr(given, "param_groups", None)
        known = self._registry.optimizers.alive().values()
        return next((each for each in known if each.param_groups is groups), None)

    @contextmanager
    def step(
        self,
        scaler: Any,
        optimizer: Optimizer,
        mark: Mark | None,
        found_inf: Callable[[], torch.Tensor | None],
    ) -> Iterator[None]:
        """Record the block in which a scaler lets an optimizer step, or skips the step.

        Args:
            scaler: The scaler.
            optimizer: The optimizer.
            mark: The source line of the step.
            found_inf: A function that returns the found_inf of the step; called after the block.
        """
        notes, steps, again = self._registry.optimizer(optimizer), 0, False
        with self._guard.own():
            again = self._grammar.divides_again(optimizer)
            steps = notes.steps
            scale = loss_scale_of(scaler)
            notes.scale = None if scale is None else scale.detach().clone()
        self._stepping.append(scaler)
        try:
            yield
        finally:
            self._stepping.pop()
        with self._guard.own():
            skipped = notes.steps == steps
            self._grammar.scaler_stepped(
                mark, self._number(scaler), optimizer, skipped=skipped, again=again
            )
            if skipped:
                notes.skipped += 1
                self.watched.tell("on_skip", optimizer, found_inf())

    def scale_of(self, optimizer: Optimizer) -> float | None:
        """Return the loss scale of an optimizer's gradients; None if their scaler is unknown."""
        scalers = self._registry.scalers.alive()
        for each in self._grammar.state(optimizer).scales:
            scale = loss_scale_of(scalers.get(each.scaler))
            if scale is not None:
                return float(scale)
        return None

    def _on_update(self, original: Any, scaler: Any, args: Any, kwargs: Any) -> Any:
        mark = None
        with self._guard.own():
            mark = calling_line()
            given = args[0] if args else kwargs.get("new_scale")
            self.updated(mark, scaler, by_loop=True, given=given is not None)
        with self._theirs("update", mark, scaler):
            return original(scaler, *args, **kwargs)

    def updated(
        self, mark: Mark | None, scaler: Any, *, by_loop: bool, given: bool = False
    ) -> None:
        """Record an update of a loss scale, by the loop or by the engine.

        Args:
            mark: The source line.
            scaler: The scaler.
            by_loop: Whether the loop calls it.
            given: Whether the loop gives the new loss scale.
        """
        self._grammar.updated(mark, self._number(scaler), by_loop=by_loop, given=given)
        self._updates += 1

    def on_new_scaler(self, scaler: Any, *_: Any, **__: Any) -> None:
        """Register a new scaler, or note that it is off because there is no GPU."""
        with self._guard.own():
            if scaler.is_enabled():
                self._registry.scaler(scaler, self._grammar.iteration, calling_line())
            else:
                self.off |= device_of(scaler) == "cuda" and not torch.cuda.is_available()

    def _on_loaded(self, scaler: Any, *_: Any, **__: Any) -> None:
        with self._guard.own():
            if scaler.is_enabled():
                self._registry.scaler(scaler).restored = True

    def _number(self, scaler: Any) -> int:
        self._registry.scaler(scaler)
        return self._registry.scalers.number(scaler)
