"""Runs one training step under a recipe, on tensors without memory.

The engine itself runs the step, on fake copies of the model, the optimizer and a batch. So casts,
master weights, the loss scale and its checks run as in training. The subject is not modified; only
the shapes, dtypes and memory layouts of its tensors are read.
"""

from __future__ import annotations

import copy
import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.predict.operators import is_channels_last, native_product
from halfstep.advise.predict.recurrent import Recurrent
from halfstep.advise.predict.trace import recorded
from halfstep.engine import Engine
from halfstep.errors import UserError, in_a_line
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.trace import Trace
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe


_TRACED = 3
"""Maximum micro-steps that are traced per step: those between the first and the last are equal."""


def traced(
    subject: Subject, recipe: str | Recipe, batch: int | None = None, *, exact: bool = False
) -> Trace:
    """Trace the second step of a model under a recipe, when the optimizer has its state.

    Args:
        subject: The subject.
        recipe: The recipe.
        batch: Samples of a micro-step; by default as many as in the subject's first batch.
        exact: Whether to count the exact sizes of storages, rather than sizes that are rounded up
            as by CUDA's allocator.

    Raises:
        UserError: If a step on a CPU runs other operators than a GPU would under the recipe, or if
            the model cannot run on tensors without values.
    """
    return traced_at(subject, recipe, [batch or samples(subject.batches[0])], exact=exact)[0]


def traced_at(
    subject: Subject,
    recipe: str | Recipe,
    batches: Sequence[int],
    *,
    exact: bool = False,
    gpu: Gpu | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Trace, ...]:
    """Trace a step at each of several batch sizes, after a step that creates the optimizer's state.

    Args:
        subject: The subject.
        recipe: The recipe.
        batches: The batch sizes: samples of a micro-step.
        exact: Whether to count the exact sizes of storages, rather than sizes that are rounded up
            as by CUDA's allocator.
        gpu: For a recipe whose operators depend on it, as in FP8: the GPU.
        check: Called before each operator; raises to end the trace.

    Raises:
        UserError: For the same reasons as in `traced`.
        BudgetSpentError: If `check` raises it.
    """
    found = find_recipe(recipe)
    if found.untraceable and gpu is None:
        raise UserError(
            f"the cost of {found.name} cannot be predicted: a CPU and a GPU run different "
            f"operators for this part of the recipe: {', '.join(found.untraceable)}; leave "
            f"{found.name} out of --recipes"
        )
    try:
        with _quiet(), FakeTensorMode(allow_non_fake_inputs=True):
            return _steps(subject, found, batches, exact=exact, gpu=gpu, check=check)
    except (UserError, BudgetSpentError):
        raise
    except Exception as error:
        subject.loss_of(subject.copied(), subject.batches[0])  # Raises if it fails anyway.
        said = in_a_line(error)
        raise UserError(
            f"{subject.name} cannot be traced under {found.name} with tensors that have no "
            f"values: {said}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about rehearsals, which do not run here, and torch's log of failures."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _steps(
    subject: Subject,
    recipe: Recipe,
    batches: Sequence[int],
    *,
    exact: bool,
    gpu: Gpu | None,
    check: Callable[[], None],
) -> tuple[Trace, ...]:
    size = samples(subject.batches[0])
    found = []
    with recorded(exact=exact, check=check) as recorder, Recurrent(recorder.record):
        if gpu is not None:
            recipe = recipe.traced_on(gpu, lambda each: recorder.record(native_product(each), 1))
        model = _fake_model(subject.model)
        optimizer = as_on_a_gpu(subject.optimizer(model))
        # Closed while the recorder is active: closing reads a value of a fake tensor, which fails
        # without the recorder.
        micro_steps = min(subject.accumulate, _TRACED)
        with Engine(
            model,
            optimizer,
            recipe=recipe,
            accumulate=micro_steps,
            clip_norm=subject.clip_norm,
            nonfinite="apply",
        ) as engine:
            for place, batch in enumerate([batches[0], *batches]):
                given = None  # frees the batch of the previous step
                given = tree_map(
                    lambda leaf, to=batch: _resized(leaf, size, to), subject.batches[0]
                )
                recorder.begin(listed=place > 0)
                for number in range(micro_steps):
                    recorder.times = 1 + (subject.accumulate - micro_steps) * (number == 1)
                    recorder.phase = "forward"
                    with engine.autocast():
                        loss = subject.loss(engine.model, given)
                    recorder.forward_is_done()
                    engine.backward(loss)
                    del loss
                    recorder.phase = "optimizer"
                    engine.step()
                if place > 0:
                    found.append(recorder.trace(batch))
    return tuple(found)


def fake_forward(subject: Subject, batch: int | None, watch: Callable[[nn.Module], None]) -> None:
    """Compute the loss of a copy of the model without values, after a call of `watch` with it.

    Raises:
        UserError: If the model cannot run on tensors without values.
    """
    size = samples(subject.batches[0])
    try:
        with _quiet(), FakeTensorMode(allow_non_fake_inputs=True):
            model = _fake_model(subject.model)
            watch(model)
            given = tree_map(lambda leaf: _resized(leaf, size, batch or size), subject.batches[0])
            subject.loss(model, given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{subject.name} cannot run on tensors that have no values: {in_a_line(error)}"
        ) from error


def samples(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return len(leaf)
    raise UserError("a batch has no tensor; allowed: tensors, and containers of them")


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory that has the same shape, dtype and strides."""
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, tensor.requires_grad)
    return fake


def _fake_model(real: nn.Module) -> nn.Module:
    """Return a copy in training mode without memory; tied parameters stay tied."""
    memo: dict[int, Any] = {}
    for tensor in [*real.parameters(), *real.buffers()]:
        memo[id(tensor)] = _fake(tensor)
    return copy.deepcopy(real, memo).train()


def as_on_a_gpu(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Make an optimizer update all parameters together, as torch and halfstep do on CUDA."""
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.SGD | torch.optim.Adam):
            group["fused"] = True
            optimizer._step_supports_amp_scaling = True  # noqa: SLF001
        elif group.get("foreach", False) is None:
            group["foreach"] = True
    return optimizer


def _resized(leaf: Any, size: int, wanted: int) -> Any:
    """Return a fake tensor with another number of samples; return other values unchanged."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if not leaf.dim() or len(leaf) != size or wanted == size:
        return _fake(leaf)
    fake = torch.empty(wanted, *leaf.shape[1:], dtype=leaf.dtype)
    # Images of one channel are in both layouts; without --batch-size they count as NCHW too.
    return fake.to(memory_format=torch.channels_last) if is_channels_last(leaf) else fake
