"""Looks into a run between its steps: how far gradients are from fp32's, what memory holds.

A probe takes one training batch, always the same, and leaves no trace: gradients are taken apart
from the parameters', BatchNorm's statistics and random states are put back.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from halfstep.techniques.activations import CompressedActivations
from halfstep.techniques.float8 import scales_kept
from halfstep.techniques.matmul import MatmulPrecision
from halfstep.train.observers.census import Census

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import nn

    from halfstep.engine import Engine
    from halfstep.train.build.loss import Loss


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes, counted tensor by tensor; the same on every device.

    Attributes:
        parameters: Parameters and buffers of the model.
        gradients: One for each parameter, in the format that the recipe keeps them in.
        optimizer: Its state, and master weights and compensations where the recipe has them.
        activations: What the forward pass of one micro-batch keeps for the backward, as it is.
        compressed: What it keeps of activations in a few bits an element; None under a recipe that
            compresses none.
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
        engine: Whose model; between two windows whenever something is measured.
        twin: The same model in fp32, on the same device; its weights do not matter.
    """

    engine: Engine
    twin: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    loss: Loss = functional.cross_entropy

    def gradients(self) -> dict[str, float]:
        """Compare gradients with those of the twin at the weights of now.

        Returns:
            `gradient_cosine`, of the angle between all of them and fp32's, and `gradient_error`,
            the norm of the difference over the norm of fp32's.
        """
        ours, exact = self._ours(), self._exact()
        error = torch.linalg.vector_norm(ours - exact) / torch.linalg.vector_norm(exact)
        cosine = functional.cosine_similarity(ours, exact, 0)
        return {"gradient_cosine": float(cosine), "gradient_error": float(error)}

    def formats(self, expected: str) -> dict[str, Any]:
        """Count which format a step's arithmetic runs in; the recipe asks for `expected`.

        Returns:
            Plain data: shares by format, and the layers that are exceptions with the reason.
        """
        with Census(self.engine.bare_model) as census:
            self._ours()
        return {
            "flops": sum(census.flops.values()),
            "shares": census.shares(),
            "exceptions": census.exceptions(expected),
        }

    def held(self) -> Held:
        """Count what memory holds after a step has been taken."""
        engine = self.engine
        model_tensors = [*engine.bare_model.parameters(), *engine.bare_model.buffers()]
        own = {id(tensor) for tensor in model_tensors}
        state = engine.state_dict()
        # As they are saved: moments of a few bits are tensors of a library's own in the optimizer.
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
        # What the forward pass has noted of the statistics belongs to no step.
        engine.zero_grad()
        return _flat(grads)

    def _exact(self) -> torch.Tensor:
        self.twin.load_state_dict(self.engine.bare_model.state_dict())
        self.twin.train()
        exactly = MatmulPrecision("ieee")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TF32 is set aside on purpose
            exactly.prepare([self.twin], [])
        try:
            with _leaving_no_trace(self.twin):
                params = _trained(self.twin)
                grads = torch.autograd.grad(self._loss(self.twin), params, allow_unused=True)
        finally:
            exactly.close()
        return _flat(
            [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
        )

    def _loss(self, model: nn.Module) -> torch.Tensor:
        return self.loss(model(self.images).float(), self.labels)

    def _activations(self) -> tuple[int, int | None]:
        """Return the bytes that are kept as they are, and those of what is compressed."""
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
            # Those of a technique stand inside them, and take everything.
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            self.engine.autocast(),
        ):
            loss = self._loss(model)
            for each in kept:
                seen |= each()
        del loss
        self.engine.zero_grad()
        held = [each for place, each in seen.items() if place not in own]
        whole = sum(size for size, compressed in held if not compressed)
        return whole, sum(size for size, compressed in held if compressed) if kept else None


@contextmanager
def _looking(engine: Engine) -> Iterator[list[Callable[[], dict[int, tuple[int, bool]]]]]:
    """Leave random numbers of techniques alone; yield what gives the storages that they keep."""
    found = [each for each in engine.techniques if isinstance(each, CompressedActivations)]
    with ExitStack() as stack:
        yield [stack.enter_context(each.looked_at()) for each in found]


@contextmanager
def _leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Put buffers, delayed scales and random states back."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [buffer.device for buffer in model.parameters() if buffer.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices), scales_kept(model):
        try:
            yield
        finally:
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def _flat(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([grad.detach().double().flatten() for grad in grads])


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _size(tensors: Iterable[torch.Tensor]) -> int:
    # Tied parameters and views of one storage are held once.
    once = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in once.values())
