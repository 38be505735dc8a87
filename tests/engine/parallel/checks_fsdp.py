"""What processes check of models of which each holds a part; run by `processes.main`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from engine.tiny import differences
from halfstep.engine import (
    EMA,
    Engine,
    full_state_dict,
    load_sharded,
    save_sharded,
    shard,
)

from . import nets
from .checks_ddp import floats, relative, replicated, same_everywhere
from .nets import RECIPES, backward, follow, net, sgd, share, weights

CLIPS = ({}, {"clip_norm": 0.5}, {"clip_value": 0.01}, {"clip_adaptive": 0.02})


def sharded(kind: str, recipe: str, *, how=None, **settings) -> Engine:
    model = shard(net(kind, recipe), RECIPES[recipe], **(how or {}))
    return Engine(model, sgd(model), recipe=RECIPES[recipe], **settings)


def check_sharded_equals_replicated(rank: int, world: int) -> None:
    for recipe, bound in (("fp64", 1e-12), ("fp32", 1e-6), ("fp16", 1e-3), ("o2", 1e-3)):
        for clip in CLIPS if recipe == "fp64" else CLIPS[1:2]:
            with replicated("resnet", recipe, sync_batchnorm=True, **clip) as engine:
                expected = follow(engine, recipe, 3, rank, world)
            with sharded("resnet", recipe, how={"sync_batchnorm": True}, **clip) as engine:
                found = follow(engine, recipe, 3, rank, world)
            same_everywhere([found["weights"], found["norms"], found["scale"]])
            assert found["scale"] == expected["scale"]
            assert relative(floats(found["weights"]), floats(expected["weights"])) < bound
            norms = torch.tensor([found["norms"], expected["norms"]], dtype=torch.float64)
            errors = (norms[0] / norms[1] - 1).abs()
            # Half activations round a weight's last bit up or down, and a later gradient shows it.
            assert errors[0] < min(bound, 1e-5), (recipe, clip)
            assert errors.max() < (bound if bound < 1e-3 else 2e-2), (recipe, clip)


def check_formats_are_those_of_the_recipe(rank: int, world: int) -> None:
    model = net("resnet")
    inside = {}
    for name in ("stem", "blocks.0.norm1", "norm", "head"):
        model.get_submodule(name).register_forward_hook(
            lambda module, given, out, name=name: inside.__setitem__(
                name, (module.weight.dtype, given[0].dtype, out.dtype)
            )
        )
    model = shard(model, "o2")
    optimizer = sgd(model)
    half, wide = torch.float16, torch.float32
    with Engine(model, optimizer, recipe="o2") as engine:
        images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
        with engine.autocast():
            outputs = engine.model(images)
            loss = cross_entropy(outputs, labels)
        engine.backward(loss)
        assert {p.grad.dtype for p in model.parameters()} == {wide}
        engine.step()
    assert outputs.dtype == wide
    assert inside == {
        "stem": (half, half, half),
        "blocks.0.norm1": (wide, half, half),
        "norm": (wide, wide, wide),  # cast after this hook
        "head": (half, half, half),
    }
    assert {p.dtype for group in optimizer.param_groups for p in group["params"]} == {wide}
    assert {b.dtype for b in model.buffers() if b.is_floating_point()} == {wide}


def check_memory_falls_with_the_number_of_processes(rank: int, world: int) -> None:
    """Bytes of parameters, gradients and optimizer state; sizes are multiples of the world's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 16))
    total = sum(param.numel() * 4 for param in model.parameters())
    model = shard(model, "o2")
    optimizer = AdamW(model.parameters())
    with Engine(model, optimizer, recipe="o2") as engine:
        for last in (False, True):
            with engine.autocast():
                loss = engine.model(torch.ones(2, 16)).float().square().mean()
            engine.backward(loss)
            if not last:
                engine.step()

        def held(tensors) -> int:
            stored = [t.to_local().untyped_storage() for t in tensors]  # one may serve several
            return sum({each.data_ptr(): each.nbytes() for each in stored}.values())

        assert held(model.parameters()) == total // world
        assert held(param.grad for param in model.parameters()) == total // world
        for kind in ("exp_avg", "exp_avg_sq"):
            assert held(state[kind] for state in optimizer.state.values()) == total // world
        engine.zero_grad()


def check_recomputed_activations_change_nothing(rank: int, world: int) -> None:
    for recipe in ("fp32", "fp16", "o2"):
        results = []
        for again in (False, True):
            counted = []
            how = {"checkpoint_activations": again}
            with sharded("resnet", recipe, how=how) as engine:
                layer = engine.bare_model.blocks[0].conv1
                layer.register_forward_hook(lambda *_, counted=counted: counted.append(1))
                results.append(follow(engine, recipe, 3, rank, world)["weights"])
            assert len(counted) == (6 if again else 3)
        # Running statistics included: the second forward leaves them alone.
        assert not differences(*results)


def run(engine: Engine, some, rank: int, world: int) -> None:
    for images, labels in some:
        backward(engine, share(images, rank, world), share(labels, rank, world))
        engine.step()


def adamw_engine(recipe: str, *, sharded: bool) -> Engine:
    model = net("resnet", recipe)
    if sharded:
        model = shard(model, RECIPES[recipe], sync_batchnorm=True)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    return Engine(model, optimizer, recipe=RECIPES[recipe], accumulate=2, average=EMA(0.9))


def everything(engine: Engine) -> dict:
    """Weights, average and optimizer state, whole."""
    return {
        "weights": weights(engine),
        "average": {k: nets.whole(v) for k, v in engine.averaged_state_dict().items()},
        "state": [
            {key: nets.whole(value) for key, value in engine.optimizer.state[held].items()}
            for held in engine.optimizer.param_groups[0]["params"]
        ],
        "scale": engine.loss_scale,
        "steps": engine.steps,
    }


SAVED = ("fp64-scaled", "o2")


def check_a_checkpoint_resumes_bitwise(rank: int, world: int, directory: str) -> None:
    """Saved in the middle of a window; `went_on.pt` is what the run that saved it became."""
    for recipe in SAVED:
        where = Path(directory) / f"{recipe}-{world}"
        with adamw_engine(recipe, sharded=True) as engine:
            run(engine, nets.batches(3, recipe), rank, world)
            assert engine.steps == 1
            save_sharded(where, engine, extra={"epoch": 3})
            now = everything(engine)
            run(engine, nets.batches(6, recipe)[3:], rank, world)
            went_on = everything(engine)
        with adamw_engine(recipe, sharded=True) as engine:
            assert load_sharded(where, engine) == {"epoch": 3}
            run(engine, nets.batches(6, recipe)[3:], rank, world)
            assert not differences(everything(engine), went_on)
        if rank == 0:
            torch.save({"now": now, "went_on": went_on}, where / "seen.pt")


def check_a_checkpoint_of_two_resumes_on_four(rank: int, world: int, directory: str) -> None:
    for recipe in SAVED:
        where = Path(directory) / f"{recipe}-2"
        seen = torch.load(where / "seen.pt", weights_only=True)
        with adamw_engine(recipe, sharded=True) as engine:
            load_sharded(where, engine)
            assert not differences(everything(engine), seen["now"])
            run(engine, nets.batches(6, recipe)[3:], rank, world)
            found = floats(weights(engine))
        bound = 1e-9 if recipe.startswith("fp64") else 0.05
        assert relative(found, floats(seen["went_on"]["weights"])) < bound


def check_export_is_whole_and_fp32(rank: int, world: int) -> None:
    with sharded("resnet", "o2") as engine:
        follow(engine, "o2", 1, rank, world)
        state = full_state_dict(engine.bare_model)
        assert bool(state) == (rank == 0)
        expected = weights(engine)
        if rank == 0:
            assert not differences(state, expected)
            plain = net("resnet")
            plain.load_state_dict(state)
            assert {v.dtype for v in floats(state)} == {torch.float32}


def check_losses_with_scales_of_their_own(rank: int, world: int) -> None:
    results = []
    for build in (sharded, replicated):
        with build("alexnet", "fp16") as engine:
            images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
            with engine.autocast():
                outputs = engine.model(images).float()
                first, second = cross_entropy(outputs, labels), outputs.square().mean()
            engine.backward(first, retain_graph=True)
            engine.backward(second, loss_id="size")
            assert engine.step().stepped
            results.append(weights(engine))
    assert relative(*(list(each.values()) for each in results)) < 1e-6


def check_sharding_refuses_what_cannot_work(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="no fp32 master weights, and sharded ones are fp32"):
        shard(net("alexnet"), "half-bn32")
    model = shard(net("alexnet"), "o2")
    with pytest.raises(ValueError, match=r"sharded for recipe 'o2'.*recipe='o2'"):
        Engine(model, sgd(model), recipe="fp16")
    with pytest.raises(ValueError, match="already wrapped in fully_shard"):
        shard(model, "o2")
    model = fully_shard(net("alexnet"))
    with pytest.raises(ValueError, match=r"halfstep\.shard\(model, recipe\) instead"):
        Engine(model, sgd(model), recipe="o2")
    with Engine(model, sgd(model), recipe="fp16") as engine:  # parameters stay what they are
        run(engine, nets.batches(1), rank, world)
    model = net("alexnet")
    with Engine(model, sgd(model)) as engine:
        fully_shard(engine.model)
        with pytest.raises(RuntimeError, match=r"fully_shard.*came after the engine"):
            run(engine, nets.batches(1), rank, world)
    model = shard(net("alexnet"), "fp32")
    halves = [sgd(part) for part in (model.features, model.classifier)]
    limited = r"cannot be limited under halfstep\.shard"
    with Engine(model, halves) as engine, pytest.raises(RuntimeError, match=limited):
        backward(engine, *nets.batches(1)[0], optimizers=halves[:1])
    dist.barrier()
