"""Item `rounding`: AdamW with bf16 parameters, on a model whose step is nearly the optimizer's."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gpu_items.steps import Task, by_engine, by_torch
from gpu_items.turns import Variant, alternate
from halfstep.optim.eight_bit import Adam8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_items import At
    from gpu_items.turns import Row

LAYERS, FEATURES, BATCH = 24, 4096, 8
PEER = "PyTorch, bf16 weights, fused"
SPLIT8 = {"base": "bf16-true", "master_weights": "split8"}


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of each way to update bf16 parameters, and of fp32 ones."""

    def fused(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, 1e-4, fused=at.on_gpu)

    def torchao(parameters: Any) -> torch.optim.Optimizer:
        from torchao.optim import _AdamW

        optimizer: torch.optim.Optimizer = _AdamW(parameters, 1e-4, bf16_stochastic_round=True)
        return optimizer

    def flash(parameters: Any) -> torch.optim.Optimizer:
        import flashoptim

        return flashoptim.FlashAdamW(parameters, lr=1e-4)

    task = layers(at, fused)
    eight_bit = layers(at, partial(Adam8, lr=1e-4, decoupled=True))
    variants = [
        Variant(PEER, lambda _: by_torch(layers(at, fused, torch.bfloat16), "fp32")),
        *(
            Variant(f"engine, {recipe}", partial(by_engine, task, recipe), PEER)
            for recipe in ("bf16-sr", "bf16-kahan", "bf16-true", "o2")
        ),
        *(
            Variant(
                f"engine, {name}, moments in 8 bits", partial(by_engine, eight_bit, recipe), PEER
            )
            for name, recipe in (("bf16-sr", "bf16-sr"), ("split8", SPLIT8))
        ),
        Variant("PyTorch, fp32 weights, fused", lambda _: by_torch(task, "fp32"), PEER),
        Variant(
            "torchao, bf16 weights, stochastic rounding",
            lambda _: by_torch(layers(at, torchao, torch.bfloat16), "fp32"),
            PEER,
        ),
    ]
    if find_spec("flashoptim"):
        with_flash = layers(at, flash, torch.bfloat16)
        variants.append(Variant("FlashOptim", lambda _: by_torch(with_flash, "fp32"), PEER))
    # torchao compiles its step, for minutes on a CPU.
    with torch.compiler.set_stance("force_eager" if at.toy else "default"):
        for row in alternate(variants, at):
            yield {"of": task.of, **row}


def layers(
    at: At,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    weights: torch.dtype | None = None,
) -> Task:
    """Return the task: linear layers without a bias on a small batch.

    Args:
        at: The device; sizes that are toys replace the others.
        optimizer: Creates the optimizer of parameters.
        weights: The dtype of the weights and of the input; None for fp32.
    """
    count, features = (2, 64) if at.toy else (LAYERS, FEATURES)

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with torch.device(at.device):
            made = (nn.Linear(features, features, bias=False) for _ in range(count))
            model = nn.Sequential(*made).to(weights)
        return model, optimizer(model.parameters())

    values = torch.randn(BATCH, features, device=at.device, dtype=weights)
    of = f"AdamW, {count * features**2 / 1e6:.4g} M parameters, a batch of {BATCH}"
    return Task(of, make, lambda model: model(values).float().square().mean())
