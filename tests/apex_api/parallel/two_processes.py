"""What two gloo processes do; its results come back to the tests through a file.

One spawn serves every test, as starting a process that imports torch is what takes time.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from halfstep import Engine
from halfstep.apex.parallel import (
    DistributedDataParallel,
    Reducer,
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
)

WORLD = 2
RECIPE = {"base": "o1", "loss_scale": 128}
SPLIT = 5
"""How many of the 8 samples rank 0 gets: the batches are uneven."""


def net(seed=0, *, norm=False):
    torch.manual_seed(seed)
    layers = [nn.BatchNorm1d(5)] if norm else []
    return nn.Sequential(nn.Linear(4, 5), *layers, nn.Tanh(), nn.Linear(5, 2))


def batch():
    torch.manual_seed(1)
    images, targets = torch.randn(8, 4), torch.randn(8, 2)
    return images, targets


def share(rank, tensor, split=4):
    return tensor[:split] if rank == 0 else tensor[split:]


def gradients(model):
    return [param.grad.clone() for param in model.parameters()]


def step(model, rank):
    images, targets = (share(rank, each) for each in batch())
    model.zero_grad()
    (model(images) - targets).square().mean().backward()
    return gradients(model)


DDP = {
    "plain": {},
    "delayed": {"delay_allreduce": True},
    "fp32": {"allreduce_always_fp32": True},
    "predivided": {"gradient_predivide_factor": 2.0},
    "summed": {"gradient_average": False},
    "retained": {"retain_allreduce_buffers": True},
    "small messages": {"message_size": 1, "num_allreduce_streams": 2, "prof": True},
}


def data_parallel(rank):
    found = {}
    for name, settings in DDP.items():
        # Different weights on rank 1: the wrapper makes them those of rank 0.
        model = DistributedDataParallel(net(rank), **settings)
        found[name] = step(model, rank)
        if name == "retained":
            flat = torch.cat([buffer.reshape(-1) for buffer in model.allreduce_buffers])
            found["buffers"] = flat.sort().values
            assert model.allreduce_buffers[0].untyped_storage().data_ptr() in {
                p.grad.untyped_storage().data_ptr() for p in model.parameters()
            }
    model = DistributedDataParallel(net(0))
    model.disable_allreduce()
    found["disabled"] = step(model, rank)
    model.enable_allreduce()
    found["enabled"] = step(model, rank)
    return found


class Halved(nn.Module):
    """One half parameter, whose gradient is the input; another that no loss reaches."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, images):
        return (self.weight * images).sum()


def half_gradients(rank):
    """Two gradients of 40000 overflow fp16 when they are added, unless fp32 or divided first."""
    found = {}
    for name in ("plain", "fp32", "predivided"):
        model = DistributedDataParallel(Halved(), **DDP[name])
        model(torch.full((2,), 40000.0, dtype=torch.float16)).backward()
        found[name] = model.module.weight.grad
        assert model.module.unused.grad is None
    return found


def reducer(rank):
    model = net(rank)
    by_model = Reducer(model)
    weights = [param.detach().clone() for param in model.parameters()]
    local = step(model, rank)
    by_model.reduce()
    by_grads = Reducer([local[0], None, [local[1:]]])  # None: a gradient that is not there
    by_grads.reduce()
    return {"weights": weights, "by model": gradients(model), "by gradients": local}


def batch_norm(rank):
    found = {}
    images = share(rank, batch()[0], SPLIT)
    for name, shape in (("2d", (4,)), ("4d", (2, 1, 2)), ("last", (2, 1, 2))):
        layer = SyncBatchNorm(shape[0] if name != "last" else 2, channel_last=name == "last")
        with torch.no_grad():
            layer.weight.copy_(torch.arange(1.0, layer.num_features + 1))
        given = images.reshape(-1, *shape).clone().requires_grad_()
        out = layer(given)
        out.pow(3).sum().backward()
        found[name] = {
            "out": out.detach(),
            "input grad": given.grad,
            "weight grad": layer.weight.grad,
            "bias grad": layer.bias.grad,
            "mean": layer.running_mean,
            "var": layer.running_var,
            "eval": layer.eval()(given).detach(),
        }
    half = SyncBatchNorm(4)(images.half())
    assert half.dtype == torch.float16
    found["half"] = half.detach()
    fused = SyncBatchNorm(4, momentum=None, fuse_relu=True)
    found["fused"] = fused(images, images).detach()
    found["cumulative mean"] = fused.running_mean
    alone = SyncBatchNorm(4, process_group=create_syncbn_process_group(1))
    found["alone"] = alone(images).detach()
    assert create_syncbn_process_group(0) is None
    try:
        create_syncbn_process_group(3)
    except AssertionError as error:
        found["refused"] = str(error)
    return found


def trained_together(rank):
    """A converted model under the wrapper and the engine, as a program has them."""
    model = convert_syncbn_model(net(0, norm=True))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe=RECIPE)
    wrapped = DistributedDataParallel(model, delay_allreduce=True)
    images, targets = (share(rank, each) for each in batch())
    losses = []
    for _ in range(3):
        with engine.autocast():
            loss = (wrapped(images) - targets).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    engine.close()
    return {"losses": torch.stack(losses), "weights": weights}


def main(rank, directory):
    torch.set_num_threads(1)
    store = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    jobs = (data_parallel, half_gradients, reducer, batch_norm, trained_together)
    found = {job.__name__: job(rank) for job in jobs}
    torch.save(found, f"{directory}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
