"""A room-impulse regressor in functional style; the smoothed weights are the ones that get used."""
import torch
from torch import nn
from torch.func import functional_call, grad

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 4))
teacher = torch.randn(12, 4) / 12 ** 0.5


def rooms(n, g):
    x = torch.randn(n, 12, generator=g)
    return x, torch.sin(x @ teacher / 2)


def cost(weights, x, y):
    return (functional_call(net, weights, (x,)) - y).pow(2).mean()


class Smoother:
    def __init__(self, weights, keep=0.98, dtype=torch.bfloat16):
        self.keep = keep
        self.values = [w.to(dtype).clone() for w in weights.values()]

    def fold(self, weights):
        fresh = [w.to(v.dtype) for w, v in zip(weights.values(), self.values)]
        torch._foreach_lerp_(self.values, fresh, 1 - self.keep)

    def named(self, names):
        return {k: v.float() for k, v in zip(names, self.values)}


def train(steps, g, lr=4e-3, momentum=0.98):
    weights = {k: p.detach().clone() for k, p in net.named_parameters()}
    square = {k: torch.zeros_like(w) for k, w in weights.items()}
    smoother = Smoother(weights)
    for step in range(steps):
        slopes = grad(cost)(weights, *rooms(64, g))
        for k, s in slopes.items():
            square[k].mul_(momentum).addcmul_(s, s, value=1 - momentum)
            weights[k] = weights[k] - lr * (1 - step / steps) * s / (square[k].sqrt() + 1e-6)
        smoother.fold(weights)
    return smoother.named(weights)


g = torch.Generator().manual_seed(3)
smooth = train(150, g)
with torch.no_grad():
    print("RESULT", cost(smooth, *rooms(2000, g)).item())
