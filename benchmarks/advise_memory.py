"""Compares the memory of a real training step on the CPU with the memory that its trace counts.

    python benchmarks/advise_memory.py                    # all twenty models
    python benchmarks/advise_memory.py resnet18 gru       # some; the rows of the others are kept

The bytes are those of the second step, when the optimizer has its state. `saved` is the size of the
storages between forward and backward that saved-tensor hooks see or that are alive, without
parameters, buffers, optimizer state and batch. `peak` is the largest number of bytes that are alive
at the same time. The LSTM of oneDNN is switched off, as in traces, because other recipes and other
devices do not use it. Each model runs in a separate process. Results go to
`benchmarks/results/advise_memory.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
from memory_models import MODELS, subject
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halfstep import Engine
from halfstep.advise.predict.step import as_on_a_gpu, traced

RESULTS = Path(__file__).parent / "results" / "advise_memory.json"
RECIPES = ("fp32", "fp16", "bf16", "o2", "half-bn32", "bf16-sr")


class Alive(TorchDispatchMode):
    """Counts the bytes of storages that are alive.

    Args:
        held: Tensors that exist before the first operator.
    """

    def __init__(self, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0
        self.add(held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count the storages of its results."""
        del types
        out = func(*args, **(kwargs or {}))
        self.add([leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)])
        return out

    def add(self, tensors: list[torch.Tensor]) -> None:
        """Count the storages of tensors."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001  (what tells two storages apart)
            if key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, key)
        self.peak = max(self.peak, self.now)

    @property
    def now(self) -> int:
        """The bytes of the storages that are alive."""
        return sum(self.sizes.values())


def real(name: str, recipe: str) -> dict[str, int]:
    """Return the memory of the second real step under a recipe, in bytes."""
    asked = subject(name)
    model = asked.copied()
    optimizer = as_on_a_gpu(asked.optimizer(model))
    batch = asked.batches[0]
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage  # noqa: SLF001
        return tensor

    held = [*model.parameters(), *model.buffers(), *batch]
    with (
        torch.backends.mkldnn.flags(enabled=name != "lstm"),
        Alive(held) as alive,
        Engine(model, optimizer, recipe=recipe) as engine,
    ):
        for _ in range(2):
            before = dict(alive.sizes)
            alive.peak = alive.now
            with (
                torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
                engine.autocast(),
            ):
                loss = asked.loss(engine.model, batch)
            sizes = {**alive.sizes, **{key: each.nbytes() for key, each in saved.items()}}
            found = sum(size for key, size in sizes.items() if key not in before)
            saved.clear()
            engine.backward(loss)
            del loss
            engine.step()
        return {"saved": found, "held": sum(before.values()), "peak": alive.peak}


def rows(name: str) -> list[dict[str, Any]]:
    """Return the real and the traced bytes of a model under each recipe."""
    found = []
    for recipe in RECIPES:
        counted, trace = real(name, recipe), traced(subject(name), recipe, exact=True)
        each = {"model": name, "recipe": recipe}
        for what in ("saved", "peak"):
            each |= {f"{what}_real": counted[what], f"{what}_traced": getattr(trace, what)}
        found.append(each)
    return found


def error(row: dict[str, Any], what: str) -> float:
    """Return the relative error of the trace."""
    return float(row[f"{what}_traced"] / row[f"{what}_real"] - 1)


def main() -> None:
    """Compare the models, each in a separate process, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--alone", action="store_true", help="in this process, printed as JSON")
    given = parser.parse_args()
    if given.alone:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        print(json.dumps([row for name in given.models for row in rows(name)]))
        return
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    by_model = {
        row["model"]: [each for each in kept if each["model"] == row["model"]] for row in kept
    }
    for name in given.models:
        command = [sys.executable, __file__, "--alone", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        by_model[name] = json.loads(done.stdout)
        all_rows = [row for each in MODELS for row in by_model.get(each, ())]
        worst = {
            what: round(max(abs(error(row, what)) for row in all_rows), 5)
            for what in ("saved", "peak")
        }
        RESULTS.write_text(json.dumps({"worst": worst, "rows": all_rows}, indent=1) + "\n")
        for row in by_model[name]:
            off = ", ".join(f"{what} {error(row, what):+.2%}" for what in ("saved", "peak"))
            print(f"{name:24} {row['recipe']:10} {off}", flush=True)


if __name__ == "__main__":
    main()
