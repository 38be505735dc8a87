"""What processes check of an overflow that only one of them has; run by `processes.main`."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from engine.tiny import differences, with_infinite_gradient
from halfstep.engine import EMA, Engine, LossScaleCollapse, NonFiniteGradients, shard

from . import nets
from .checks_ddp import reductions, same_everywhere
from .nets import net, share, weights


class Probed(nn.Module):
    """A net beside whose outputs one layer adds numbers that depend on no input.

    An infinite gradient of one output reaches one row of that layer, which is one shard.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = net("resnet")
        self.probe = nn.Linear(1, 10)

    def forward(self, images: torch.Tensor, *, broken: bool = False) -> torch.Tensor:
        row = self.probe(torch.ones(1, 1, dtype=images.dtype)).float() / 64
        if broken:
            row = torch.cat([with_infinite_gradient(row[:, :1]), row[:, 1:]], dim=1)
        return self.net(images).float() + row


def engine_of(how: str, recipe: str | dict, **settings) -> Engine:
    torch.manual_seed(0)
    model = Probed()
    recipe = nets.RECIPES[recipe] if isinstance(recipe, str) else recipe
    if how == "fsdp":
        model = shard(model, recipe, sync_batchnorm=True)
    else:
        settings |= {"parallel": "ddp", "sync_batchnorm": True}
    if how == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.02, momentum=0.9)
    else:
        optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = StepLR(optimizer, 1, 0.9)
    return Engine(
        model, optimizer, recipe=recipe, scheduler=scheduler, average=EMA(0.9), **settings
    )


def state_of(engine: Engine) -> dict:
    """All that a skipped step must leave alone."""
    engine.flush()
    whole = {} if type(engine.optimizer).__name__.startswith("Zero") else engine.optimizer.state
    return {
        "weights": weights(engine),
        "average": {k: nets.whole(v) for k, v in engine.averaged_state_dict().items()},
        "momentum": [nets.whole(s["momentum_buffer"]) for s in whole.values()],
        "lr": engine.optimizer.param_groups[0]["lr"],
    }


def check_an_overflow_on_one_process_skips_everywhere(rank: int, world: int) -> None:
    ways = [("ddp", "fp16"), ("zero", "fp16"), ("fsdp", "o2")]
    ways = [("ddp", "half-bn32"), ("zero", "fp32"), ("fsdp", "bf16"), *ways]
    for how, recipe in ways if world == 2 else ways[-1:]:
        with engine_of(how, recipe) as engine:
            scales = []
            for step, (images, labels) in enumerate(nets.batches(4)):
                before = state_of(engine)
                with engine.autocast():
                    broken = step == 2 and rank == 1
                    outputs = engine.model(share(images, rank, world), broken=broken)
                    loss = cross_entropy(outputs, share(labels, rank, world))
                engine.backward(loss)
                if step == 2 and how == "fsdp":
                    mine = engine.bare_model.probe.weight.grad.to_local()
                    assert bool(mine.isfinite().all()) == (rank > 0), "one shard only has it"
                result = engine.step()
                assert result.skipped == (step == 2), (how, recipe, step)
                assert bool(differences(state_of(engine), before)) != result.skipped
                scales.append((engine.loss_scale, result.loss_scale, str(result)))
            if engine.recipe.scaling:
                assert engine.loss_scale == engine.loss_scales[None].settings.init / 2
            assert engine.skipped == 1
            same_everywhere([scales, state_of(engine)])


def check_a_loss_with_its_own_scale_is_agreed_on(rank: int, world: int) -> None:
    """Its overflow is found before the gradients are averaged, on the process that has it."""
    with engine_of("ddp", "fp16") as engine:
        images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
        before = state_of(engine)
        with engine.autocast():
            loss = cross_entropy(engine.model(images, broken=rank == 1), labels)
        engine.backward(loss, loss_id="mine")
        result = engine.step()
        assert result.skipped
        assert not differences(state_of(engine), before)
        same_everywhere({str(k): float(v.scale) for k, v in engine.loss_scales.items()})
        assert float(engine.loss_scales["mine"].scale) == engine.loss_scale / 2


def check_a_collapse_is_raised_everywhere(rank: int, world: int) -> None:
    given = {"base": "fp16", "loss_scale": {"init": 2.0, "floor": 1.0, "collapse_after": 2}}
    images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
    for how in ("ddp", "fsdp"):
        engine = engine_of(how, given)
        for _ in range(2):
            with engine.autocast():
                loss = cross_entropy(engine.model(images, broken=rank == 1), labels)
            engine.backward(loss)
            assert engine.step().skipped
        with pytest.raises(LossScaleCollapse, match="probe") as caught:
            engine.close()
        same_everywhere(str(caught.value))


def check_non_finite_gradients_are_raised_everywhere(rank: int, world: int) -> None:
    images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
    for how in ("ddp", "fsdp"):
        with engine_of(how, "fp32", nonfinite="raise") as engine:
            before = state_of(engine)
            with engine.autocast():
                loss = cross_entropy(engine.model(images, broken=rank == 1), labels)
            engine.backward(loss)
            with pytest.raises(NonFiniteGradients, match=r"at step 1: probe\.weight") as caught:
                engine.step()
            assert not differences(state_of(engine), before)
            same_everywhere(str(caught.value))


def check_one_small_sum_a_step_and_none_if_nothing_is_checked(rank: int, world: int) -> None:
    images, labels = (share(t, rank, world) for t in nets.batches(1)[0])
    for recipe, policy, expected in (
        ("bf16", "apply", []),
        ("bf16", "skip", [1]),
        ("fp16", "apply", [1]),
    ):
        model = net("alexnet")
        settings = {"recipe": recipe, "nonfinite": policy, "accumulate": 2}
        with Engine(model, nets.sgd(model), parallel="ddp", **settings) as engine:
            for _ in range(2):
                with reductions() as noted:
                    nets.backward(engine, images, labels)
                    engine.step()
            # One flag for each scale of each optimizer, or for its check without a scale.
            assert [size for _, size in noted] == expected


def check_a_process_without_samples_weighs_nothing(rank: int, world: int) -> None:
    torch.manual_seed(0)
    inputs, targets, start = torch.randn(5, 3), torch.randn(5, 2), nn.Linear(3, 2)
    plain, model = copy.deepcopy(start), copy.deepcopy(start)
    mse_loss(plain(inputs), targets).backward()
    own = len(inputs) if rank == 0 else 0
    with Engine(model, SGD(model.parameters(), lr=1.0), parallel="ddp", accumulate=2) as engine:
        for samples in (own, 0):
            outputs = engine.model(inputs)
            loss = mse_loss(outputs, targets) if samples else outputs.sum() * 0
            engine.backward(loss, samples=samples)
            engine.step()
    for before, param, true in zip(
        start.parameters(), model.parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(before - param, true.grad)
    same_everywhere(list(model.parameters()))


def check_engines_that_share_nothing_do_not_wait(rank: int, world: int) -> None:
    """Each process trains a model of its own: a different number of steps must not hang."""
    model = net("alexnet", seed=rank)
    with Engine(model, nets.sgd(model), recipe="fp16") as engine:
        for batch in nets.batches(1 + rank):
            nets.backward(engine, *batch)
            engine.step()
    dist.barrier()
