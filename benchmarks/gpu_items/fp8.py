"""Item `fp8`: four blocks of an MLP in bf16 and in FP8, beside torchao's FP8."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from gpu_items.steps import Task, by_engine, by_torch
from gpu_items.turns import COMPILES, TO_START, Variant, alternate
from halfstep import recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row, Step

BLOCKS, FEATURES, INNER, TOKENS = 4, 4096, 16384, 8192
PEER = "PyTorch, bf16"
COMPILED = "PyTorch, bf16, compiled"


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of eager blocks, then of compiled ones.

    "bf16 weights" are in bf16 without autocast, as torchao's FP8 is mostly used; the other weights
    are in fp32, under autocast to bf16.
    """
    yield {"of": "fp8", "how": str(recipe("fp8").resolve(at.device))}
    task = blocks(at)
    eager = [
        Variant(PEER, lambda _: by_torch(task, "bf16")),
        *(
            Variant(f"engine, {name}", partial(by_engine, task, name), PEER)
            for name in ("bf16", "fp8", "fp8-delayed")
        ),
    ]
    backend = "eager" if at.toy else "inductor"
    compiled = [
        Variant(COMPILED, lambda _: by_torch(task, "bf16", backend=backend)),
        Variant(
            "torchao, tensorwise, bf16 weights, compiled",
            lambda _: by_torchao(at, torch.bfloat16, backend),
            COMPILED,
        ),
        Variant("torchao, tensorwise, compiled", lambda _: by_torchao(at, None, backend), COMPILED),
        Variant(
            "engine, fp8, compiled", partial(by_engine, task, "fp8", backend=backend), COMPILED
        ),
    ]
    theirs, ours = compiled[:-1], [compiled[0], compiled[-1]]
    for variants, to_start in ((eager, TO_START), (theirs, COMPILES), (ours, COMPILES)):
        for row in alternate(variants, at, to_start=to_start):
            yield {"of": task.of, **row}


def blocks(at: At, weights: torch.dtype | None = None) -> Task:
    """Return the task: blocks of LayerNorm, Linear, GELU and Linear, with SGD.

    Args:
        at: The device; sizes that are toys replace the others.
        weights: The dtype of the weights and of the input; None for fp32.
    """
    features, inner, tokens = (32, 64, 16) if at.toy else (FEATURES, INNER, TOKENS)

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with torch.device(at.device):
            layers = [
                (
                    nn.LayerNorm(features),
                    nn.Linear(features, inner),
                    nn.GELU(),
                    nn.Linear(inner, features),
                )
                for _ in range(BLOCKS)
            ]
            model = nn.Sequential(*(layer for block in layers for layer in block)).to(weights)
        return model, torch.optim.SGD(model.parameters(), 0.01, fused=at.on_gpu)

    values = torch.randn(tokens, features, device=at.device, dtype=weights)
    of = f"{BLOCKS} blocks, {features} to {inner} features, {tokens} tokens"
    return Task(of, make, lambda model: model(values).float().square().mean())


def by_torchao(at: At, weights: torch.dtype | None, backend: str) -> Step:
    """Return a step with torchao's linear layers in FP8, one scale for each tensor."""
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    plain = blocks(at, weights)
    config = Float8LinearConfig.from_recipe_name("tensorwise")

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = plain.make()
        convert_to_float8_training(model, config=replace(config, emulate=not at.on_gpu))
        return model, torch.optim.SGD(model.parameters(), 0.01, fused=at.on_gpu)

    autocast = "bf16" if weights is None else "fp32"
    return by_torch(Task(plain.of, make, plain.loss), autocast, backend=backend)
