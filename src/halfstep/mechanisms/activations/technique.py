"""Compressed activations: the tensors that autograd saves, in 2 to 8 bits per element.

After ActNN (Chen et al., ICML 2021, arXiv:2104.14129): each group of 256 elements has its own
quantization levels, and rounding is stochastic, so that the gradient is right on average. This
works in eager mode, for modules of any class.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from halfstep.errors import closest
from halfstep.mechanisms.activations.operators import Operators
from halfstep.mechanisms.activations.store import Draws, Store, held
from halfstep.mechanisms.exceptions.technique import matching
from halfstep.mechanisms.technique import Stage, Technique, as_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from halfstep.mechanisms.activations.store import Saved, Whole


class CompressedActivations(Technique):
    """Compresses the tensors that autograd saves to a few bits per element.

    Args:
        layers: Patterns of module names, and for each the bits of the tensors that the matching
            modules save; None for no compression. If several patterns match, the last one applies.
            "*" matches everything.
        group: Number of elements that share quantization levels.
        seed: Seed of the stochastic rounding.

    Raises:
        ValueError: In `prepare`, if a pattern matches no module.
    """

    stage = Stage.FORWARD

    def __init__(self, layers: Mapping[str, int | None], *, group: int, seed: int) -> None:
        self._layers = dict(layers)
        self._draws = Draws(seed)
        self._is_checked = False
        self._store = Store(group, self._draws)
        self._running = threading.local()
        self._patterns: dict[str, str] = {}
        self._operators = Operators(self._store, lambda: self._bits(self._innermost()))
        self._handles: list[Any] = []
        self._models: Sequence[nn.Module] = ()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Register hooks on the modules whose bits differ from those of the surrounding module."""
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
        """Return a context that compresses the tensors which autograd saves.

        Raises:
            ValueError: If a model is compiled, no matter if before or after the engine was built.
        """
        del device
        if torch.is_grad_enabled():
            if not self._is_checked:
                self._refuse_compiled()
                self._is_checked = True
            self._draws.next_forward()
        self._running.within = []  # after an interrupt, names of modules may be left over
        with saved_tensors_hooks(self._store.save, self._store.restore), self._operators:
            yield

    @contextmanager
    def looked_at(self) -> Iterator[Callable[[], dict[int, tuple[int, bool]]]]:
        """Observe forward passes, without an effect on the random numbers of later passes.

        Yields:
            A function that returns the storages which these forward passes have saved: for the
            address of each storage, its bytes and whether it is compressed. The storages are kept
            alive until the function is dropped.
        """
        noted: list[Whole | Saved] = []
        with self._draws.aside(), self._store.heard_by(lambda _, saved: noted.append(saved)):
            yield lambda: _storages(noted)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of forward passes that drew random numbers."""
        return {"forwards": self._draws.forwards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the random numbers of the forward pass after the saved one."""
        self._draws.forwards = int(state["forwards"])

    def close(self) -> None:
        """Remove the hooks from the modules."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _innermost(self) -> str | None:
        """Return the name of the innermost running module in this thread, of those with hooks."""
        within: list[str] | None = getattr(self._running, "within", None)
        return within[-1] if within else None

    def _bits(self, module: str | None) -> int | None:
        """Return the bits for the tensors that a module saves; None for no compression."""
        return self._layers.get(self._patterns.get(module or "", "*"))

    def _is_followed(self, pattern: str, around: str | None) -> bool:
        """Tell whether a module needs hooks, because its bits differ from those around it.

        Args:
            pattern: The pattern that applies to the module.
            around: The pattern that applies to its parent module; None if the module is a model.
        """
        return around is not None and self._layers.get(pattern) != self._layers.get(around)

    def _name_modules(self, model: nn.Module, prefix: str) -> None:
        """Record the pattern that applies to each module, and register the necessary hooks."""
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
