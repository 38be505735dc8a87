"""Compressed activations: what autograd saves, in 2 to 8 bits an element.

After ActNN (Chen et al., ICML 2021, arXiv:2104.14129): groups of 256 elements with levels of their
own, rounded stochastically, so that the gradient is right on average. Whatever the module is called
and however it calls its operators, in eager mode.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from halfstep.errors import closest
from halfstep.techniques.activations.operators import Operators
from halfstep.techniques.activations.store import Draws, Store, held
from halfstep.techniques.base import Stage, Technique, as_function
from halfstep.techniques.exceptions import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from halfstep.techniques.activations.store import Saved, Whole


class CompressedActivations(Technique):
    """Keep what autograd saves in a few bits an element.

    Args:
        layers: Patterns of module names, and the bits of what modules that match save; None keeps
            it whole. Of patterns that match, the last decides; "*" is everything.
        group: Elements that share their levels.
        seed: Of the stochastic rounding.

    Raises:
        ValueError: When it is prepared, if a pattern matches no module.
    """

    stage = Stage.FORWARD

    def __init__(self, layers: Mapping[str, int | None], *, group: int, seed: int) -> None:
        self._layers = dict(layers)
        self._draws = Draws(seed)
        self._store = Store(group, self._draws)
        self._running = threading.local()
        self._patterns: dict[str, str] = {}
        self._operators = Operators(self._store, lambda: self._bits(self._innermost()))
        self._handles: list[Any] = []
        self._models: Sequence[nn.Module] = ()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Note which modules keep their tensors in other bits than the rest."""
        del optimizers
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._draws.rank = torch.distributed.get_rank()
        self._models = models
        for pattern in self._layers:
            self._refuse_unknown(pattern, models)
        for index, model in enumerate(models):
            self._name_modules(model, str(index))

    @contextmanager
    def forward(self, device: torch.device) -> Iterator[None]:
        """Take hold of what is saved.

        Raises:
            ValueError: If a model is compiled, before or after the engine was made.
        """
        del device
        if torch.is_grad_enabled():
            if not self._draws.forwards:
                self._refuse_compiled()
            self._draws.next_forward()
        self._running.within = []  # also after an interrupt that left a module without its hook
        with saved_tensors_hooks(self._store.save, self._store.restore), self._operators:
            yield

    @contextmanager
    def looked_at(self) -> Iterator[Callable[[], dict[int, tuple[int, bool]]]]:
        """Let forward passes inside leave no trace in the random numbers of those after.

        Yields:
            What gives all that they keep, as long as it is kept: by its address the bytes of a
            storage, and whether it is compressed.
        """
        forwards = self._draws.forwards
        try:
            noted: list[Whole | Saved] = []
            with self._store.heard_by(lambda _, saved: noted.append(saved)):
                yield lambda: _storages(noted)
        finally:
            self._draws.forwards = forwards

    def state_dict(self) -> dict[str, Any]:
        """Return how many forward passes drew random numbers."""
        return {"forwards": self._draws.forwards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the random numbers of the forward pass after."""
        self._draws.forwards = int(state["forwards"])

    def close(self) -> None:
        """Let go of the modules."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _innermost(self) -> str | None:
        """Return the innermost module that runs in this thread, of those that are followed."""
        within: list[str] | None = getattr(self._running, "within", None)
        return within[-1] if within else None

    def _bits(self, module: str | None) -> int | None:
        """Return the bits of what a module saves; None where it is kept whole."""
        return self._layers.get(self._patterns.get(module or "", "*"))

    def _is_followed(self, pattern: str, around: str | None) -> bool:
        """Tell whether it matters which of two modules runs, by the patterns that decide on them.

        `around` is of the module outside, None for a model itself.
        """
        return around is not None and self._layers.get(pattern) != self._layers.get(around)

    def _name_modules(self, model: nn.Module, prefix: str) -> None:
        """Note which pattern decides on each module, and follow those where it matters."""
        patterns: dict[nn.Module, str] = dict.fromkeys(model.modules(), "*")
        for pattern in self._layers:  # from the least to the most specific
            if pattern != "*":
                for matched in matching(model, pattern):
                    patterns.update(dict.fromkeys(matched.modules(), pattern))
        around = {inner: outer for outer in model.modules() for inner in outer.children()}
        for name, module in model.named_modules(prefix=prefix):
            self._patterns[name] = patterns[module]
            outside = patterns[around[module]] if module in around else None
            if self._is_followed(patterns[module], outside):
                self._follow(module, name)

    def _follow(self, module: nn.Module, name: str) -> None:
        def enter(*_: Any) -> None:
            if not hasattr(self._running, "within"):
                self._running.within = []
            self._running.within.append(name)

        def leave(*_: Any) -> None:
            if self._running.within:
                self._running.within.pop()

        self._handles += [
            module.register_forward_pre_hook(as_function(enter), prepend=True),
            module.register_forward_hook(as_function(leave), always_call=True),
        ]

    def _refuse_compiled(self) -> None:
        for module in (each for model in self._models for each in model.modules()):
            compiled = module._compiled_call_impl is not None  # noqa: SLF001  (as torch itself asks)
            if compiled or isinstance(module, torch._dynamo.OptimizedModule):
                raise ValueError(
                    "activations are compressed as a model runs, and this one is compiled: the "
                    "compiler decides what is saved; leave compile out, or use a recipe without "
                    "activations and torch._functorch.config.activation_memory_budget = 0.5"
                )

    def _refuse_unknown(self, pattern: str, models: Sequence[nn.Module]) -> None:
        if pattern != "*" and not any(matching(model, pattern) for model in models):
            names = [name for model in models for name, _ in model.named_modules() if name]
            raise ValueError(
                f"activations names {pattern!r}, which matches no module; allowed: "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
                f"{closest(pattern, names)}"
            )


def _storages(noted: Iterable[Whole | Saved]) -> dict[int, tuple[int, bool]]:
    found: dict[int, tuple[int, bool]] = {}
    for tensors, compressed in map(held, noted):
        for storage in (tensor.untyped_storage() for tensor in tensors):
            found[storage.data_ptr()] = storage.nbytes(), compressed
    return found
