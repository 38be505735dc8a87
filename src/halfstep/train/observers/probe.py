"""Measures a run between two steps: its gradients' deviation from fp32, formats, and memory use.

A probe uses one training batch, always the same, and has no effect on training: its gradients are
not written to the parameters, and BatchNorm's statistics and random states are restored.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from halfstep import step_observer
from halfstep.kernels.accelerators import forked_rng, wide
from halfstep.recipe import Recipe
from halfstep.train.observers.census import Census

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from halfstep.engine import Engine
    from halfstep.mechanisms.technique import StoragesKept
    from halfstep.train.build.loss import Loss


@dataclass(frozen=True, slots=True)
class Held:
    """Memory in use, by kind, in bytes. The sizes of tensors are summed: the same on every device.

    Attributes:
        parameters: Parameters and buffers of the model.
        gradients: Gradients of all parameters, in the dtype in which the recipe keeps them.
        optimizer: Optimizer state, and the master weights and compensations of the recipe.
        activations: Tensors that the forward pass of one micro-batch saves for the backward without
            compression.
        compressed: Activations that it saves in a few bits per element; None if the recipe
            compresses no activations.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    compressed: int | None


@dataclass(frozen=True, slots=True)
class Probe:
    """Measures a model in training on one batch.

    Attributes:
        engine: The engine of the model. Measure only while no accumulation window is open.
        twin: The same model in fp32, on the same device. Its weights are overwritten.
        images: Images of the batch, on the device.
        labels: Labels of the batch, on the device.
        loss: The loss function.
    """

    engine: Engine
    twin: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    loss: Loss = functional.cross_entropy

    def gradients(self) -> dict[str, float]:
        """Compare the gradients with those of the fp32 twin, at the current weights.

        Returns:
            `gradient_cosine`, the cosine similarity of all gradients and the fp32 gradients;
            `gradient_error`, the norm of their difference divided by that of the fp32 gradients.
        """
        ours = self._ours()
        with step_observer.active.aside():
            exact = self._exact()
            error = torch.linalg.vector_norm(ours - exact) / torch.linalg.vector_norm(exact)
            cosine = functional.cosine_similarity(ours, exact, 0)
            return {"gradient_cosine": float(cosine), "gradient_error": float(error)}

    def formats(self, expected: str) -> dict[str, Any]:
        """Count the FLOPs of a micro-batch by number format; `expected` is the recipe's format.

        Returns:
            Plain data: `flops`, the total; `shares` of them by format; and `exceptions`, the layers
            that computed in another format, with the reason.
        """
        with Census(self.engine.bare_model, self.engine.resolution.layers) as census:
            self._ours()
        return {
            "flops": sum(census.flops.values()),
            "shares": census.shares(),
            "exceptions": census.exceptions(expected),
        }

    def held(self) -> Held:
        """Return the memory in use after a step, by kind."""
        engine = self.engine
        model_tensors = [*engine.bare_model.parameters(), *engine.bare_model.buffers()]
        own = {id(tensor) for tensor in model_tensors}
        state = engine.state_dict()
        # From the saved state, because low-bit moments in the optimizer are tensor subclasses.
        states = [saved["state"] for saved in state["optimizers"]]
        kept = [*_tensors(state["techniques"]), *_tensors(states)]
        masters = [
            param
            for group in engine.optimizer.param_groups
            for param in group["params"]
            if id(param) not in own
        ]
        wide = engine.recipe.gradient_format == "fp32" or engine.accumulate > 1
        whole, compressed = self._activations()
        return Held(
            parameters=_size(model_tensors),
            gradients=sum(
                param.numel() * (torch.float32 if wide else param.dtype).itemsize
                for param in _trained(engine.bare_model)
            ),
            optimizer=_size([*kept, *masters]),
            activations=whole,
            compressed=compressed,
        )

    def _ours(self) -> torch.Tensor:
        engine = self.engine
        with _leaving_no_trace(engine.bare_model), _looking(engine):
            with engine.autocast():
                loss = self._loss(engine.bare_model)
            params = _trained(engine.bare_model)
            grads = engine.grad(loss, params, allow_unused=True)
        # The forward pass copied BatchNorm's statistics for a step, but no step follows.
        engine.zero_grad()
        with step_observer.active.aside():
            return _flat(grads)

    def _exact(self) -> torch.Tensor:
        self.twin.load_state_dict(self.engine.bare_model.state_dict())
        self.twin.train()
        with _leaving_no_trace(self.twin), ExitStack() as stack:
            for technique in Recipe(matmul="ieee").techniques():
                stack.callback(technique.close)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # TF32 is switched off on purpose
                    technique.prepare([self.twin], [])
            params = _trained(self.twin)
            grads = torch.autograd.grad(self._loss(self.twin), params, allow_unused=True)
        return _flat(
            [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
        )

    def _loss(self, model: nn.Module) -> torch.Tensor:
        return self.loss(model(self.images).float(), self.labels)

    def _activations(self) -> tuple[int, int | None]:
        """Return the bytes of uncompressed and of compressed activations; see `Held`."""
        model = self.engine.bare_model
        own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        seen: dict[int, tuple[int, bool]] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes(), False
            return tensor

        with (
            _leaving_no_trace(model),
            _looking(self.engine) as kept,
            # A compressing technique has its own hooks inside of these, which get all tensors.
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            self.engine.autocast(),
        ):
            loss = self._loss(model)
            for storages in kept:
                seen |= storages()
        del loss
        self.engine.zero_grad()
        held = [kept_bytes for place, kept_bytes in seen.items() if place not in own]
        whole = sum(size for size, compressed in held if not compressed)
        return whole, sum(size for size, compressed in held if compressed) if kept else None


@contextmanager
def _looking(engine: Engine) -> Iterator[list[StoragesKept]]:
    """Preserve the techniques' state; yield functions that return the storages they keep."""
    with ExitStack() as stack:
        contexts = [stack.enter_context(technique.looked_at()) for technique in engine.techniques]
        yield [kept for kept in contexts if kept is not None]


@contextmanager
def _leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Restore buffers and random states after the block."""
    with step_observer.active.aside():
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with forked_rng(next(model.parameters()).device):
        try:
            yield
        finally:
            with step_observer.active.aside():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def _flat(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.detach().to(wide(grad.device)).flatten() for grad in grads])


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _size(tensors: Iterable[torch.Tensor]) -> int:
    # Tied parameters and views of one storage count once.
    once = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in once.values())
