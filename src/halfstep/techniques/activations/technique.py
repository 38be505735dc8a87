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
        self._operators = Operators(self._store, self._bits)
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
        for model in models:
            for module, bits in self._changes(model):
                self._follow(module, bits)

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
        self._running.bits = []  # also after an interrupt that left a module without its hook
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
            with self._store.noting() as noted:
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

    def _bits(self) -> int | None:
        """Return the bits of the innermost module that runs in this thread."""
        within: list[int | None] | None = getattr(self._running, "bits", None)
        return within[-1] if within else self._layers.get("*")

    def _changes(self, model: nn.Module) -> Iterator[tuple[nn.Module, int | None]]:
        """Yield modules whose bits are not those of the module around them, and their bits."""
        bits: dict[nn.Module, int | None] = {}
        bits.update(dict.fromkeys(model.modules(), self._layers.get("*")))
        around = {inner: outer for outer in model.modules() for inner in outer.children()}
        for pattern, given in self._layers.items():  # from the least to the most specific
            if pattern != "*":
                for matched in matching(model, pattern):
                    bits.update(dict.fromkeys(matched.modules(), given))
        for module, given in bits.items():
            if module is not model and given != bits[around[module]]:
                yield module, given

    def _follow(self, module: nn.Module, bits: int | None) -> None:
        def enter(*_: Any) -> None:
            if not hasattr(self._running, "bits"):
                self._running.bits = []
            self._running.bits.append(bits)

        def leave(*_: Any) -> None:
            if self._running.bits:
                self._running.bits.pop()

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
