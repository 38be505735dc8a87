"""Activation checkpointing: blocks keep only their inputs and recompute the rest in the backward.

This uses `torch.utils.checkpoint` and adds what it leaves to its caller: running statistics are
updated only once, the exceptions of a recipe apply to the recomputation too, and a block that
changes its input in place is refused. Only the class of a block changes, not the name of any
module, so that state dicts, replicas in threads, deep copies and FSDP2 keep working.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from halfstep.engine.thread_state import function_modes
from halfstep.layers.swap import mix_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK_LISTS = (nn.Sequential, nn.ModuleList)


def recompute(model: nn.Module, blocks: Iterable[nn.Module] | None = None) -> None:
    """Make blocks recompute their activations in the backward; weight updates stay the same.

    Args:
        model: The model, changed in place; not yet passed to an engine or to `fully_shard`.
        blocks: Modules of the model, none inside another. By default the innermost repeated modules
            (the blocks of a transformer or a residual network), or else the members of the
            outermost `nn.Sequential` and `nn.ModuleList` that have submodules.

    Raises:
        ValueError: If the model has no blocks.
    """
    chosen = list(blocks or _repeated(model) or filter(_has_parts, outermost(model)))
    if not chosen:
        raise ValueError("it has no blocks of several layers to recompute")
    for block in dict.fromkeys(chosen):
        mix_in(block, Recomputed)


def outermost(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of the outermost lists, `nn.Sequential` or `nn.ModuleList`.

    For a list inside such a list, its members are yielded instead.
    """
    for child in module.children():
        if isinstance(child, _BLOCK_LISTS) or not isinstance(module, _BLOCK_LISTS):
            yield from outermost(child)
        else:
            yield child


def _repeated(module: nn.Module) -> list[nn.Module]:
    """Return the innermost modules whose siblings all have the same class and have submodules."""
    children = list(module.children())
    inside = [each for child in children for each in _repeated(child)]
    if inside:
        return inside
    alike = len({type(child) for child in children}) == 1 and all(map(_has_parts, children))
    return children if alike else []


def _has_parts(module: nn.Module) -> bool:
    return any(True for _ in module.children())


class Recomputed(nn.Module):
    """Mixed into the class of a block: runs its forward again when a backward needs activations."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block, and keep only its inputs for the backward."""
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        # Copy the containers: DenseNet later appends to the list that it passes to a layer.
        args, kwargs = tree_map(lambda each: each, (args, kwargs))
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        before = [each._version for each in inputs]
        outputs = checkpoint(
            super().forward,
            *args,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _Again(self)),
            **kwargs,
        )
        if before != [each._version for each in inputs]:
            raise ValueError(
                f"{type(self).__name__.removeprefix('Recomputed')} changes its input in place, so "
                "its activations cannot be recomputed; write checkpoint_activations=false"
            )
        return outputs


class _Again(AbstractContextManager[None]):
    """The context of a recomputation: the function modes of the forward pass, fixed statistics.

    torch itself restores autocast.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._modes = function_modes()
        self._held = ExitStack()

    def __enter__(self) -> None:
        self._held.enter_context(_statistics_at_rest(self._block))
        self._held.enter_context(self._modes())

    def __exit__(self, *_: object) -> None:
        self._held.close()


@contextmanager
def _statistics_at_rest(block: nn.Module) -> Iterator[None]:
    """Restore running statistics at the end: the first forward pass has already updated them."""
    layers = [module for module in block.modules() if isinstance(module, _NormBase)]
    buffers = [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)
