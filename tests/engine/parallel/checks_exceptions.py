"""What processes check of exceptions from the recipe's format; run by `processes.main`."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from engine.tiny import differences
from halfstep.engine import Engine, shard

from . import nets
from .checks_ddp import floats, relative, same_everywhere
from .nets import sgd, share, weights

HALF, WIDE = torch.float16, torch.float32
OPERATORS = {"op:softmax": "fp32", "op:tanh": "fp32"}


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weigh, self.mix = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.mix(values).tanh() * self.weigh(values).softmax(-1)


class Gated(nn.Module):
    """Blocks in a list that has no forward of its own, and a head; takes (n, 1, 12, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(144, 16)
        self.blocks = nn.ModuleList([Gate(), Gate()])
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.stem(images.flatten(1))
        for block in self.blocks:
            values = block(values)
        return self.head(values)


class Results(TorchDispatchMode):
    """Formats of what two operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = defaultdict(set)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.name() in {"aten::_softmax", "aten::tanh"}:
            self.seen[func.name()].add(result.dtype)
        return result


def recipe_of(base: str, exceptions: dict[str, str]) -> dict:
    return {"base": base, "loss_scale": {"init": 1024.0}, "exceptions": exceptions}


def engine_of(how: str, recipe: dict, **options) -> Engine:
    torch.manual_seed(0)
    model = Gated()
    if how == "fsdp":
        model = shard(model, recipe, **options)
    return Engine(model, sgd(model), recipe=recipe, **({"parallel": "ddp"} if how == "ddp" else {}))


def trained(engine: Engine, rank: int = 0, world: int = 1) -> list[float]:
    """Train three steps; return the losses of all processes together."""
    losses = []
    for images, labels in nets.batches(3):
        with engine.autocast():
            outputs = engine.model(share(images, rank, world)).float()
            loss = cross_entropy(outputs, share(labels, rank, world))
        engine.backward(loss)
        assert engine.step().stepped
        mean = loss.detach() / world
        if world > 1:
            dist.all_reduce(mean)
        losses.append(float(mean))
    return losses


def formats_of(engine: Engine, rank: int, world: int) -> dict:
    """Formats of weight, input and output of some layers, and of the results of operators."""
    seen: dict[str, tuple[torch.dtype, ...]] = {}
    handles = []
    for name in ("stem", "blocks.1.mix", "head.0"):
        layer = engine.bare_model.get_submodule(name)

        def before(layer, given, name=name) -> None:  # a shard is freed when the layer has run
            seen[name] = layer.weight.dtype, given[0].dtype

        def after(layer, given, out, name=name) -> None:
            seen[name] = (*seen[name], out.dtype)

        handles += [layer.register_forward_pre_hook(before), layer.register_forward_hook(after)]
    images = share(nets.batches(1)[0][0], rank, world)
    with engine.autocast(), Results() as results, torch.no_grad():
        engine.model(images)
    for handle in handles:
        handle.remove()
    return {**seen, **results.seen}


def check_exceptions_hold_on_several_processes(rank: int, world: int) -> None:
    operators = {"aten::_softmax": {WIDE}, "aten::tanh": {WIDE}}
    cast = (WIDE, WIDE, HALF)  # by autocast, inside the layer
    wide, half = (WIDE, WIDE, WIDE), (HALF, HALF, HALF)
    for how in ("ddp", "fsdp"):
        for base, excepted, expected in (
            ("fp16", "head", {"stem": cast, "blocks.1.mix": cast, "head.0": wide}),
            ("fp16", "blocks", {"stem": cast, "blocks.1.mix": wide}),
            ("o2", "head", {"stem": half, "blocks.1.mix": half, "head.0": wide}),
            ("o2", "blocks", {"stem": half, "blocks.1.mix": wide, "head.0": half}),
        ):
            recipe = recipe_of(base, {excepted: "fp32", **OPERATORS})
            with engine_of("alone", recipe) as one:
                wanted = trained(one)
                moved = floats(weights(one))
            with engine_of(how, recipe) as engine:
                found = trained(engine, rank, world)
                seen = formats_of(engine, rank, world)
                same_everywhere(weights(engine))
                assert relative(floats(weights(engine)), moved) < 1e-3, (how, base, excepted)
            for name, formats in {**expected, **operators}.items():
                assert seen[name] == formats, (how, base, excepted, name, seen[name])
            errors = [abs(a - b) for a, b in zip(found, wanted, strict=True)]
            assert max(errors) < 2e-3, (how, base, excepted, found, wanted)


def check_recomputed_activations_keep_exceptions(rank: int, world: int) -> None:
    for base in ("fp16", "o2"):
        # Whole blocks, what they call, and what is called anywhere.
        for exceptions in ({"blocks.0": "fp32"}, {"blocks.*.tanh": "fp32"}, OPERATORS):
            results = []
            for again in (False, True):
                recipe = recipe_of(base, exceptions)
                with engine_of("fsdp", recipe, checkpoint_activations=again) as engine:
                    trained(engine, rank, world)
                    results.append(weights(engine))
            assert not differences(*results), (base, exceptions)
