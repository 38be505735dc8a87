"""Bytes that autograd saves in a real step on the CPU, beside those that its trace counts.

    python benchmarks/advise_memory.py

The real ones are those of storages that saved-tensor hooks see and that are no parameter, buffer or
input. Results go to `benchmarks/results/advise_memory.json`.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
from torch.nn import functional

from halfstep import Engine
from halfstep.advise.step import traced
from halfstep.advise.subject import Subject

if TYPE_CHECKING:
    from torch import nn

RESULTS = Path(__file__).parent / "results" / "advise_memory.json"
RECIPES = ("fp32", "fp16", "bf16", "o2", "half-bn32", "bf16-sr")
MODELS = (
    "resnet18",
    "resnet50",
    "vit_tiny_patch16_224",
    "mobilenetv3_small_050",
    "efficientnet_b0",
    "densenet121",
    "convnext_atto",
    "regnetx_002",
)


def subject(name: str) -> Subject:
    """Return a model of timm's with two random images."""
    torch.manual_seed(0)
    given = {"img_size": 64} if name.startswith("vit") else {}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    return Subject(
        name,
        timm.create_model(name, num_classes=10, **given),
        loss,
        [(torch.randn(2, 3, 64, 64), torch.zeros(2, dtype=torch.int64))],
        lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    )


def really_saved(asked: Subject, recipe: str) -> int:
    """Return the bytes that autograd keeps of a step's forward pass."""
    model = asked.copied()
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage  # noqa: SLF001  (what tells two storages apart)
        return tensor

    with Engine(model, asked.optimizer(model), recipe=recipe) as engine:
        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            engine.autocast(),
        ):
            loss = asked.loss(engine.model, asked.batches[0])
        own = [*model.parameters(), *model.buffers(), *asked.batches[0]]
        held = {tensor.untyped_storage()._cdata for tensor in own}  # noqa: SLF001
        found = sum(storage.nbytes() for key, storage in kept.items() if key not in held)
        engine.backward(loss)
        engine.step()
    return found


def main() -> None:
    """Compare them for every model and recipe."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="names of timm's")
    warnings.simplefilter("ignore")
    rows = []
    for name in parser.parse_args().models:
        asked = subject(name)
        for recipe in RECIPES:
            real, counted = really_saved(asked, recipe), traced(asked, recipe, exact=True).saved
            rows.append({"model": name, "recipe": recipe, "real": real, "traced": counted})
            print(f"{name:24} {recipe:10} {real:12} {counted / real - 1:+.2%}", flush=True)
    worst = max(abs(row["traced"] / row["real"] - 1) for row in rows)
    RESULTS.write_text(json.dumps({"worst": round(worst, 5), "rows": rows}, indent=1) + "\n")
    print(f"worst {worst:.2%}")


if __name__ == "__main__":
    main()
