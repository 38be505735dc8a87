"""What processes check of DistributedDataParallel under the engine; run by `processes.main`.

A check is a function of rank and world size that raises where something is wrong.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from engine.tiny import differences, through_a_file
from halfstep.engine import Engine

from . import nets
from .nets import RECIPES, alone, backward, follow, net, sgd, share, weights

if TYPE_CHECKING:
    from collections.abc import Iterable


def relative(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    flat = [torch.cat([t.double().reshape(-1) for t in each]) for each in (found, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def floats(state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [value for value in state.values() if value.is_floating_point()]


def same_everywhere(state: object) -> None:
    """Every process holds the same bits."""
    everybody: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, state)
    for other in everybody:
        assert not differences(other, everybody[0])


def replicated(kind: str, recipe: str, **settings) -> Engine:
    model = net(kind, recipe)
    return Engine(model, sgd(model), recipe=RECIPES[recipe], parallel="ddp", **settings)


def check_follows_one_process(rank: int, world: int) -> None:
    """20 steps follow one process on the joined batch: the small net, and three recipes of both."""
    _follow("alexnet", RECIPES, rank, world)
    _follow("resnet", ("fp64-scaled", "fp32", "o2"), rank, world)


def check_follows_one_process_under_every_recipe(rank: int, world: int) -> None:
    """The same with all of both."""
    _follow("resnet", RECIPES, rank, world)


def _follow(kind: str, recipes: Iterable[str], rank: int, world: int) -> None:
    """20 steps follow one process on the joined batch, as far as rounding lets them.

    In float64 to 1e-9; in fp32 the first gradients to 1e-5; under a half recipe the first gradients
    to the spacing of its format (its eps), and after 20 steps what several processes change is not
    more than twice what the recipe itself changes against fp32.
    """
    eps = {"fp16": 2.0**-10, "bf16": 2.0**-7, "o2": 2.0**-10, "half-bn32": 2.0**-10}
    exact: list[torch.Tensor] = []
    for recipe in recipes:
        expected = alone(kind, recipe, 20)
        exact = floats(expected["weights"]) if recipe == "fp32" else exact
        with replicated(kind, recipe, sync_batchnorm=True) as engine:
            assert isinstance(engine.model, DistributedDataParallel)
            found = follow(engine, recipe, 20, rank, world)
        same_everywhere([found["weights"], found["scale"], found["norms"]])
        first = relative(found["first"], expected["first"])
        last = relative(floats(found["weights"]), floats(expected["weights"]))
        if recipe.startswith("fp64"):
            assert max(first, last) < 1e-9, (kind, recipe, first, last)
            continue
        assert first < eps.get(recipe, 1e-5), (kind, recipe, first)
        if recipe in eps:
            own = relative(floats(expected["weights"]), exact)
            assert last < 2 * own, (kind, recipe, last, own)
        else:
            assert last < 1e-5, (kind, recipe, last)


def check_gradients_are_reduced_once_a_window(rank: int, world: int) -> None:
    counted = []

    def count(_, bucket):
        counted.append(bucket.index())
        return allreduce_hook(None, bucket)

    with replicated("alexnet", "fp32", accumulate=3) as engine:
        engine.model.register_comm_hook(None, count)
        for images, labels in engine.batches(nets.batches(7)):
            backward(engine, share(images, rank, world), share(labels, rank, world))
            engine.step()
        found = weights(engine)
    assert counted == [0, 0, 0], "one bucket for each of the windows 3, 3 and 1"
    model = net("alexnet")
    with Engine(model, sgd(model), accumulate=3) as one:
        for images, labels in one.batches(nets.batches(7)):
            backward(one, images, labels)
            one.step()
        expected = weights(one)
    assert relative(list(found.values()), list(expected.values())) < 1e-6


@contextmanager
def reductions():
    """Note the format and size of every all-reduce that Python asks for."""
    noted: list[tuple[torch.dtype, int]] = []
    real = dist.all_reduce

    def spy(tensor, *args, **kwargs):
        noted.append((tensor.dtype, tensor.numel()))
        return real(tensor, *args, **kwargs)

    dist.all_reduce = spy
    try:
        yield noted
    finally:
        dist.all_reduce = real


def check_the_recipe_chooses_the_format_of_the_reduction(rank: int, world: int) -> None:
    images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
    joined = nets.batches(1)[0]
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    expected_own = {"fp32": "fp32", "bf16": "fp32", "o2": "fp32", "half": "fp16"}
    for base, own in expected_own.items():
        for reduce in (None, *dtypes):
            model = net("alexnet")
            recipe = {"base": base, "reduce": reduce}
            with Engine(model, sgd(model), recipe=recipe, parallel="ddp") as engine:
                with reductions() as noted:
                    backward(engine, images, labels)
                seen = {dtype for dtype, size in noted if size > 100}
                # An fp32 model in its own format is left to DDP itself, which is not Python.
                wanted = dtypes[reduce or own]
                assert seen == ({wanted} if reduce or base in ("o2", "half") else set())
                found = nets.gradients(engine)
                assert engine.step().stepped
            eps = torch.finfo(torch.bfloat16 if "bf16" in (base, reduce) else torch.float16).eps
            model = net("alexnet")
            with Engine(model, sgd(model), recipe=base) as one:
                backward(one, *joined)
                assert relative(found, nets.gradients(one)) < 2 * eps


def check_half_gradients_accumulate_and_reduce_in_fp32(rank: int, world: int) -> None:
    """A small gradient after a large one, which fp16 would lose, survives window and reduction."""
    for recipe in ("o2", "half"):
        layer = nn.Linear(1, 1, bias=False).half().float()
        given = {"base": recipe, "loss_scale": None}
        engine = Engine(layer, sgd(layer), recipe=given, accumulate=2, parallel="ddp")
        with engine:
            for value in (2048.0, 0.5 * (rank + 1)):
                with engine.autocast():
                    loss = engine.model(torch.full((1, 1), value)).float().sum() * 2
                engine.backward(loss)
                if value > 1000:
                    engine.step()
            mean = sum(0.5 * (r + 1) for r in range(world)) / world
            assert layer.weight.grad.dtype == torch.float32
            assert float(layer.weight.grad) == 2048 + mean


def check_what_one_backward_does_not_reduce_is_averaged_at_the_step(rank: int, world: int) -> None:
    joined = nets.batches(3)

    def train(engine: Engine, mine) -> dict:
        for case, batch in enumerate(joined):
            images, labels = map(mine, batch)
            with engine.autocast():
                outputs = engine.model(images).float()
                losses = [cross_entropy(outputs, labels), outputs.square().mean()]
            if case == 0:  # two losses of one forward
                engine.backward(losses[0], retain_graph=True)
                engine.backward(losses[1])
                engine.step(close=True)
            elif case == 1:  # a window that was to go on
                engine.backward(losses[0])
                engine.step()
                engine.zero_grad()
                backward(engine, images, labels)
                engine.step(close=True)
            else:  # a loss with a scale of its own
                engine.backward(losses[0], retain_graph=True)
                engine.backward(losses[1], loss_id="size")
                engine.step(close=True)
        return weights(engine)

    for recipe in ("fp16", "o2"):
        results = []
        for world_ in (world, 1):
            model = net("alexnet")
            how = {"parallel": "ddp"} if world_ > 1 else {}
            with Engine(model, sgd(model), recipe=RECIPES[recipe], accumulate=2, **how) as engine:
                results.append(train(engine, lambda t, n=world_: share(t, rank if n > 1 else 0, n)))
                assert engine.skipped == 0
        same_everywhere(results[0])
        assert relative(*map(list, (r.values() for r in results))) < 1e-3


def check_uneven_batches_weigh_by_their_samples(rank: int, world: int) -> None:
    sizes = {2: (11, 5), 4: (7, 2, 4, 3)}[world]
    expected = alone("alexnet", "fp64", 2)["weights"]
    with replicated("alexnet", "fp64") as engine:
        for images, labels in nets.batches(2, "fp64"):
            mine = images.split(sizes)[rank], labels.split(sizes)[rank]
            backward(engine, *mine, samples=len(mine[1]))
            norm = engine.step().grad_norm
        found = weights(engine)
    same_everywhere([found, norm])
    assert relative(list(found.values()), list(expected.values())) < 1e-12


def check_optimizers_that_take_turns(rank: int, world: int) -> None:
    """A GAN: the generator's loss goes through the discriminator, whose turn it is not."""

    def train(world_: int) -> list[dict]:
        torch.manual_seed(0)
        makes, judges = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        both = [makes, judges]
        optimizers = [SGD(each.parameters(), lr=0.1) for each in both]
        how = {"parallel": "ddp", "ddp": {"broadcast_buffers": False}} if world_ > 1 else {}
        generator = torch.Generator().manual_seed(1)
        with (
            warnings.catch_warnings(),
            Engine(both, optimizers, recipe=RECIPES["fp16"], **how) as engine,
        ):
            warnings.simplefilter("ignore", FutureWarning)
            g, d = engine.models
            for _ in range(3):
                seeds, real = torch.randn(2, 8, 4, generator=generator)
                seeds, real = (share(t, rank if world_ > 1 else 0, world_) for t in (seeds, real))
                with engine.autocast():
                    loss = d(g(seeds[:, :3])).float().mean()
                engine.backward(loss, optimizers=[engine.optimizers[0]])
                engine.step(optimizers=[engine.optimizers[0]])
                with engine.autocast():
                    judged = d(torch.cat([g(seeds[:, :3]).detach(), real])).float()
                    loss = judged[: len(real)].square().mean() - judged[len(real) :].mean()
                engine.backward(loss, optimizers=[engine.optimizers[1]])
                engine.step(optimizers=[engine.optimizers[1]])
            assert engine.skipped == 0
            return [{k: v.clone() for k, v in m.state_dict().items()} for m in engine.bare_models]

    found, expected = train(world), train(1)
    same_everywhere(found)
    for one, other in zip(found, expected, strict=True):
        assert relative(list(one.values()), list(other.values())) < 1e-3


def check_one_model_of_two_optimizers(rank: int, world: int) -> None:
    """A backward that reaches a part of a model only; DDP by itself would wait for the rest."""

    def train(world_: int) -> dict:
        model = net("alexnet", "fp64")
        halves = [SGD(part.parameters(), lr=0.1) for part in (model.features, model.classifier)]
        how = {"parallel": "ddp"} if world_ > 1 else {}
        with Engine(model, halves, recipe=RECIPES["fp64"], **how) as engine:
            for turn, batch in enumerate(nets.batches(4, "fp64")):
                mine = (share(t, rank if world_ > 1 else 0, world_) for t in batch)
                backward(engine, *mine, optimizers=[halves[turn % 2]])
                engine.step()
            return weights(engine)

    found = train(world)
    same_everywhere(found)
    assert relative(list(found.values()), list(train(1).values())) < 1e-12


def check_a_model_wrapped_later_is_noticed(rank: int, world: int) -> None:
    images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
    for recipe in ("fp16", "o2"):
        model = net("alexnet")
        with Engine(model, sgd(model), recipe=RECIPES[recipe], accumulate=2) as engine:
            wrapped = DistributedDataParallel(engine.model)
            for _ in range(2):
                with engine.autocast():
                    loss = cross_entropy(wrapped(images).float(), labels)
                engine.backward(loss)
                in_sync = wrapped.require_backward_grad_sync
                engine.step()
            assert in_sync
            found = weights(engine)
        same_everywhere(found)
        model = net("alexnet")
        with Engine(model, sgd(model), recipe=RECIPES[recipe]) as one:
            backward(one, *nets.batches(1)[0])
            one.step()
            assert relative(list(found.values()), list(weights(one).values())) < 1e-3
    model = net("alexnet")
    with Engine(model, sgd(model), recipe="o2") as engine:
        wrapped = DistributedDataParallel(engine.model)
        wrapped.register_comm_hook(None, allreduce_hook)
        with pytest.raises(ValueError, match=r"has a communication hook already.*parallel='ddp'"):
            wrapped(images)


def check_zero_redundancy_optimizer(rank: int, world: int) -> None:
    def sharded(model: nn.Module) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.02, momentum=0.9)

    expected = alone("alexnet", "fp16", 4)["weights"]
    model = net("alexnet")
    with Engine(model, sharded(model), recipe=RECIPES["fp16"], parallel="ddp") as engine:
        found = follow(engine, "fp16", 4, rank, world)["weights"]
        state = engine.state_dict()
        assert (state["optimizers"][0] is None) == (rank > 0)
        box = [through_a_file(state) if rank == 0 else None]
        dist.broadcast_object_list(box)
        follow(engine, "fp16", 1, rank, world)
        went_on = weights(engine)
    same_everywhere(found)
    assert relative(list(found.values()), list(expected.values())) < 1e-3
    model = net("alexnet")
    model.load_state_dict(found)
    with Engine(model, sharded(model), recipe=RECIPES["fp16"], parallel="ddp") as engine:
        if rank > 0:
            with pytest.raises(ValueError, match="complete on rank 0 only"):
                engine.load_state_dict(state)
        engine.load_state_dict(box[0])
        follow(engine, "fp16", 1, rank, world)
        assert not differences(weights(engine), went_on)
    model = net("alexnet")
    with pytest.raises(TypeError, match=r"halfstep\.shard\(model, 'o2'\)"):
        Engine(model, sharded(model), recipe="o2", parallel="ddp")


def check_zero_with_half_parameters_closes(rank: int, world: int) -> None:
    """Everything is given back, the state of the optimizer in the format of the parameters."""
    model = net("alexnet")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.02, momentum=0.9)
    recipe = {"base": "half-bn32", "loss_scale": 64.0}
    with Engine(model, optimizer, recipe=recipe, parallel="ddp") as engine:
        backward(engine, *(share(t, rank, world) for t in nets.batches(1)[0]))
        assert engine.step().stepped
        assert {param.dtype for param in model.parameters()} == {torch.float16}
    kept = [state["momentum_buffer"] for state in optimizer.optim.state.values()]
    assert {tensor.dtype for tensor in (*kept, *model.parameters())} == {torch.float32}
    same_everywhere(dict(model.state_dict()))
    for again in ("fp32", recipe):
        with Engine(model, optimizer, recipe=again, parallel="ddp") as engine:
            backward(engine, *(share(t, rank, world) for t in nets.batches(1)[0]))
            assert engine.step().stepped
            for param, state in optimizer.optim.state.items():
                assert state["momentum_buffer"].dtype == param.dtype
            same_everywhere(weights(engine))


def check_zero_is_refused_where_parameters_leave_it(rank: int, world: int) -> None:
    model = net("alexnet")
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), SGD, lr=0.02, parameters_as_bucket_view=True
    )
    with pytest.raises(TypeError, match="leave parameters_as_bucket_view out"):
        Engine(model, optimizer, recipe="half-bn32", parallel="ddp")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.02)
    with pytest.raises(TypeError, match=r"how updates are rounded; write recipe='fp16' or 'bf16'"):
        Engine(model, optimizer, recipe="bf16-sr", parallel="ddp")


def check_a_backward_past_the_engine_is_reduced(rank: int, world: int) -> None:
    """Half buckets, before and after the engine is closed, as torch's own hooks reduce them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).half()
    engine = Engine(model, sgd(model), recipe="half", parallel="ddp")
    wrapped = engine.model
    values = torch.full((3, 6), 0.25 * (rank + 1), dtype=torch.float16)
    model.zero_grad()
    own = torch.autograd.grad(model(values).float().square().mean(), list(model.parameters()))
    expected = [grad / world for grad in own]
    for grad in expected:
        dist.all_reduce(grad)
    for closed in (False, True):
        if closed:
            engine.close()
        wrapped.zero_grad()
        with nullcontext() if closed else engine.autocast():
            loss = wrapped(values).float().square().mean()
        loss.backward()
        found = [param.grad for param in model.parameters()]
        same_everywhere(found)
        assert relative(found, expected) < 1e-3, closed


def check_a_process_without_samples_agrees(rank: int, world: int) -> None:
    """The last process has nothing in one micro-batch; the mean is that over all samples."""
    joined = nets.batches(2, "fp64")
    sizes = (nets.JOINED, *[0] * (world - 1))

    def loss_of(engine: Engine, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = cross_entropy(engine.model(images), labels, reduction="sum")
        return total / max(len(labels), 1)

    def run(engine: Engine, split) -> dict:
        for batch in joined:
            images, labels = map(split, batch)
            engine.backward(loss_of(engine, images, labels), samples=len(labels))
            assert engine.step().stepped
        return weights(engine)

    for recipe in ("fp64", "fp64-scaled"):
        with replicated("alexnet", recipe) as engine:
            found = run(engine, lambda whole: whole.split(sizes)[rank])
        same_everywhere(found)
        model = net("alexnet", "fp64")
        with Engine(model, sgd(model), recipe=RECIPES[recipe]) as one:
            expected = run(one, lambda whole: whole)
        assert relative(list(found.values()), list(expected.values())) < 1e-12


def check_a_window_saved_half_filled_goes_on(rank: int, world: int) -> None:
    """Uneven micro-batches, saved in the middle; each process loads what the first one saved.

    After its first step DDP deals its buckets anew, which changes the order of sums of more than
    two: bitwise only where it must not.
    """
    fixed = {"find_unused_parameters": True}
    joined = nets.batches(4, "fp64")
    sizes = {2: (10, 6), 4: (6, 2, 5, 3)}[world]

    def run(engine: Engine, some) -> None:
        for images, labels in some:
            mine = images.split(sizes)[rank], labels.split(sizes)[rank]
            backward(engine, *mine, samples=len(mine[1]))
            engine.step()

    with replicated("alexnet", "fp64-scaled", accumulate=2, ddp=fixed) as engine:
        run(engine, joined[:3])
        saved = [through_a_file({"model": weights(engine), "engine": engine.state_dict()})]
        run(engine, joined[3:])
        went_on = weights(engine)
    dist.broadcast_object_list(saved)
    with replicated("alexnet", "fp64-scaled", accumulate=2, ddp=fixed) as engine:
        engine.bare_model.load_state_dict(saved[0]["model"])
        engine.load_state_dict(saved[0]["engine"])
        run(engine, joined[3:])
        assert not differences(weights(engine), went_on)
    model = net("alexnet", "fp64")
    with Engine(model, sgd(model), recipe=RECIPES["fp64-scaled"], accumulate=2) as one:
        for images, labels in joined:
            backward(one, images, labels)
            one.step()
        assert relative(list(went_on.values()), list(weights(one).values())) < 1e-12


def check_what_cannot_work_is_refused(rank: int, world: int) -> None:
    model = net("alexnet")
    with pytest.raises(ValueError, match=r"parallel is 'fsdp'; allowed.*halfstep\.shard"):
        Engine(model, sgd(model), parallel="fsdp")
    with pytest.raises(ValueError, match="ddp is given without parallel"):
        Engine(model, sgd(model), ddp={"static_graph": True})
    with pytest.raises(ValueError, match="sync_batchnorm is given without parallel"):
        Engine(model, sgd(model), sync_batchnorm=True)
    wrapped = DistributedDataParallel(model)
    with pytest.raises(ValueError, match="one is in DistributedDataParallel already"):
        Engine(wrapped, sgd(wrapped), parallel="ddp")
    model = net("alexnet")
    optimizer = SGD(model.classifier.parameters(), lr=0.1)
    with Engine(model, optimizer, parallel="ddp") as engine:
        batch = (share(t, rank, world) for t in nets.batches(1)[0])
        with pytest.raises(RuntimeError, match=r"waits for all of them.*requires_grad_"):
            backward(engine, *batch, optimizers=[optimizer])
