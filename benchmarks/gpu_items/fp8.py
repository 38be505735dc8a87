"""Item `fp8`: four blocks of an MLP, a GPT and two image models in bf16 and in FP8.

The blocks stand beside torchao's FP8 with one scale per tensor, with weights in the same format.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gpu_items.steps import Task, by_engine, by_torch, images
from gpu_items.turns import COMPILES, TO_START, Variant, alternate
from halfstep import recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_items import At
    from gpu_items.turns import Row, Step

    Group = tuple[Task, list[Variant], float]
    """What trains, the ways to do so, and the seconds before the deadline in which none starts."""

BLOCKS, FEATURES, INNER, TOKENS = 4, 4096, 16384, 8192
WIDTH, HEADS, LAYERS, CONTEXT, CHARACTERS = 2048, 16, 4, 1024, 16384
BF16 = "engine, bf16"
ROWWISE = recipe({"base": "fp8", "float8": "rowwise", "name": "fp8 rowwise"})
EMULATED = recipe({"base": "fp8", "float8": "emulated", "name": "fp8 emulated"})


def rows(at: At, part: str) -> Iterator[Row]:
    """Yield the figures of a part of the item: a key of `PARTS`."""
    yield {"of": "fp8", "how": str(recipe("fp8").resolve(at.device))}
    for task, variants, to_start in PARTS[part](at):
        for row in alternate(variants, at, to_start=to_start):
            yield {"of": task.of, **row}


def eager(at: At) -> Iterator[Group]:
    """Yield the eager blocks."""
    task = blocks(at)
    names = {"fp8": "fp8", "fp8, rowwise": ROWWISE, "fp8, emulated": EMULATED}
    variants = [
        Variant("PyTorch, bf16", lambda _: by_torch(task, "bf16")),
        Variant(BF16, partial(by_engine, task, "bf16"), "PyTorch, bf16"),
        *(
            Variant(f"engine, {name}", partial(by_engine, task, each), BF16)
            for name, each in names.items()
        ),
    ]
    yield task, variants, TO_START


def compiled(at: At) -> Iterator[Group]:
    """Yield the compiled blocks; the peer of FP8 is torchao's, with weights in fp32."""
    task, backend = blocks(at), _backend(at)
    peer, torchao = "engine, bf16, compiled", "torchao, tensorwise, compiled"
    variants = [
        Variant(peer, partial(by_engine, task, "bf16", backend=backend)),
        Variant(torchao, lambda _: by_torchao(at, None, backend), peer),
        Variant("engine, fp8, compiled", partial(by_engine, task, "fp8", backend=backend), torchao),
    ]
    yield task, variants, 20.0  # one block compiles as the others do


def gpt(at: At) -> Iterator[Group]:
    """Yield a compiled GPT."""
    task, backend = gpt_task(at), _backend(at)
    peer = "engine, bf16, compiled"
    variants = [
        Variant(peer, partial(by_engine, task, "bf16", backend=backend)),
        Variant("engine, fp8, compiled", partial(by_engine, task, "fp8", backend=backend), peer),
    ]
    yield task, variants, COMPILES


def image_models(at: At) -> Iterator[Group]:
    """Yield a ViT-L/16 and a ResNet-50, eager."""
    models = (("vit_large_patch16_224", 64, False), ("resnet50", 256, True))
    for name, batch, channels_last in models:
        task = images(name, batch, 224, at, channels_last=channels_last)
        variants = [
            Variant(BF16, partial(by_engine, task, "bf16")),
            Variant("engine, fp8", partial(by_engine, task, "fp8"), BF16),
        ]
        yield task, variants, TO_START


PARTS: dict[str, Callable[[At], Iterator[Group]]] = {
    "eager": eager,
    "compiled": compiled,
    "gpt": gpt,
    "images": image_models,
}


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


class Gpt(nn.Module):
    """A decoder that predicts tokens: blocks of attention and an MLP, each after a norm."""

    def __init__(self, width: int, heads: int, layers: int, context: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first": nn.LayerNorm(width),
                    "inputs": nn.Linear(width, 3 * width),
                    "outputs": nn.Linear(width, width),
                    "second": nn.LayerNorm(width),
                    "widen": nn.Linear(width, 4 * width),
                    "narrow": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, context, tokens)."""
        features = self.tokens(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            parts = block["inputs"](block["first"](features)).unflatten(-1, (3, self.heads, -1))
            heads = parts.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            features = features + block["outputs"](mixed.transpose(1, 2).flatten(2))
            wide = functional.gelu(block["widen"](block["second"](features)))
            features = features + block["narrow"](wide)
        logits: torch.Tensor = self.head(self.norm(features))
        return logits


def gpt_task(at: At) -> Task:
    """Return the task: a GPT on random tokens, with AdamW."""
    sizes = (32, 2, 1, 8, 32) if at.toy else (WIDTH, HEADS, LAYERS, CONTEXT, CHARACTERS)
    width, _, layers, context, tokens = sizes
    batch = 2 if at.toy else 8

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with torch.device(at.device):
            model = Gpt(*sizes)
        return model, torch.optim.AdamW(model.parameters(), 1e-4, fused=at.on_gpu)

    text = torch.randint(tokens, (batch, context + 1), device=at.device)
    of = f"GPT of width {width}, {layers} layers, {batch} x {context} tokens"

    def loss(model: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return Task(of, make, loss)


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


def _backend(at: At) -> str:
    return "eager" if at.toy else "inductor"
