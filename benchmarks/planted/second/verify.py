"""Verifies the planted truth without `advise`: rehearses recipes with and without the exceptions.

The reference is the gradient of the same weights and batches in fp64. A recipe breaks if, at every
loss scale tried, a gradient is inf or NaN or its mean squared error over the batches is above a
tenth of the gradient's variance between batches. For each fault: with all planted exceptions the
recipe must hold; without one of them it must break. Under o2 the module alone is also run in plain
PyTorch, in fp16 and in fp64, from the inputs that it gets in fp32.
"""

import copy
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

import data
from truth import FAULTY, HEALTHY, Net

from halfstep import Engine

SCALES = (65536.0, 1024.0, 32.0, 1.0)


def made(net: Net) -> tuple[nn.Module, list[tuple[Tensor, Tensor]], Any]:
    """The network, its batches and its loss of (model, batch)."""
    torch.manual_seed(0)
    module, name = net.build.split(".py:")
    model = getattr(importlib.import_module(module), name)()
    if net.loss:
        where, what = net.loss.split(".py:")
        loss = getattr(importlib.import_module(where), what)
    else:

        def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(batch[0]), batch[1])

    return model, getattr(data, net.batches)(), loss


def exact(model: nn.Module, batches: Any, loss: Any) -> Tensor:
    """Gradients (batches, parameters) in fp64."""
    rows = []
    model = copy.deepcopy(model).double()
    for x, y in batches:
        model.zero_grad()
        torch.manual_seed(1)
        loss(model, (x.double() if x.is_floating_point() else x, y)).backward()
        rows.append(flat(model))
    return torch.stack(rows)


def flat(model: nn.Module) -> Tensor:
    """All gradients of a model, in fp64."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([torch.zeros(0).double(), *[g.double().flatten() for g in gradients]])


def flat_weights(model: nn.Module) -> Tensor:
    """All weights of a model, in fp64, as one vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def rehearsed(net: Net, recipe: str, exceptions: dict[str, str], scale: float) -> Tensor:
    """Gradients (batches, parameters) under a recipe, each from the initial weights."""
    rows = []
    for index in range(4):
        model, batches, loss = made(net)
        settings: dict[str, Any] = {"base": recipe}
        if exceptions:
            settings["exceptions"] = exceptions
        scaled = recipe in {"fp16", "o2"}
        if scaled:
            settings["loss_scale"] = scale
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        engine = Engine(model, optimizer, recipe=settings)
        torch.manual_seed(1)
        with engine.autocast():
            value = loss(engine.model, batches[index])
        engine.backward(value)
        rows.append(flat(model) / (scale if scaled else 1))
        engine.close()
    return torch.stack(rows)


def breaks(net: Net, recipe: str, exceptions: dict[str, str]) -> str | None:
    """How the recipe breaks with these exceptions; None where it holds."""
    model, batches, loss = made(net)
    true = exact(model, batches, loss)
    variance = true.var(0).sum()
    worst = "inf or NaN"
    for scale in SCALES if recipe in {"fp16", "o2"} else (1.0,):
        try:
            gradient = rehearsed(net, recipe, exceptions, scale)
        except RuntimeError as error:
            return f"raises {error}".splitlines()[0]
        if gradient.isfinite().all():
            damage = float(((gradient - true[: len(gradient)]) ** 2).sum(1).mean() / variance)
            if damage <= 0.1:
                return None
            worst = f"damage {damage:.2g}"
    return worst


def stalled(net: Net, exceptions: list[str]) -> str | None:
    """The share of each module's update that fp16 weights lose, in plain PyTorch."""
    model, batches, loss = made(net)
    loss(model, batches[0]).backward()
    for name, p in model.named_parameters():
        if any(name.startswith(place + ".") for place in exceptions):
            continue
        update, p = net.lr * p.grad, p.detach()
        lost = (p.half() - update.half()) - p.half() + update
        share = float(lost.double().norm() / update.double().norm().clamp(min=1e-30))
        if share > 0.7:
            return f"{name} loses {share:.2f} of its update"
    return None


def verdict(net: Net, recipe: str, places: list[str]) -> str | None:
    """How the recipe breaks with only these places in fp32; None where it holds."""
    if recipe == "half-bn32":
        return stalled(net, places)
    return breaks(net, recipe, dict.fromkeys(places, "fp32"))


def alone(net: Net, place: str) -> str | None:
    """How far the module in plain fp16 is from fp64, both ways; None where it is near."""
    model, batches, loss = made(net)
    seen: list[Any] = []
    module = model.get_submodule(place)
    blank = copy.deepcopy(module)
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    loss(model, batches[0])
    found = []
    for dtype in (torch.float64, torch.float16):
        part = copy.deepcopy(blank).to(dtype)
        inputs = [each.detach().to(dtype).requires_grad_() for each in seen[0]]
        try:
            out = part(*inputs)
        except RuntimeError as error:
            return f"raises {error}".splitlines()[0]
        torch.manual_seed(2)
        out.backward(torch.randn(out.shape, dtype=torch.float64).to(dtype))
        found.append([out.detach().double(), flat(part), inputs[0].grad.double()])
    for what, right, got in zip(("output", "weights", "input"), *found, strict=True):
        if not got.isfinite().all():
            return f"{what}: inf or NaN"
        error = float((got - right).norm() / right.norm().clamp(min=1e-30))
        if error > 0.3:
            return f"{what}: error {error:.2g}"
    return None


def main() -> None:
    """Verify every network, or those whose names contain a word of the command line."""
    wanted = sys.argv[1:]
    rows = []
    for net in (*FAULTY, *HEALTHY):
        if wanted and not any(word in net.name for word in wanted):
            continue
        for recipe in net.recipes:
            faults = [fault for fault in net.faults if recipe in fault.recipes]
            everything = [fault.place for fault in faults]
            row: dict[str, Any] = {"net": net.name, "loss": net.loss, "recipe": recipe}
            row["with all exceptions"] = verdict(net, recipe, everything)
            good = row["with all exceptions"] is None
            for fault in faults:
                rest = [other.place for other in faults if other is not fault]
                row[f"without {fault.place}"] = verdict(net, recipe, rest)
                good = good and row[f"without {fault.place}"] is not None
                if recipe == "o2" and not fault.place.startswith("op:"):
                    row[f"{fault.place} alone"] = alone(net, fault.place)
                    good = good and row[f"{fault.place} alone"] is not None
            row["verified"] = good
            rows.append(row)
            print("ok " if good else "BAD", row, flush=True)
    if not wanted:
        target = Path(__file__).parents[2] / "results" / "advise_second_truth.json"
        target.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
