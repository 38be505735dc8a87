"""A frozen half-precision trunk and a trainable head; the shards of a batch go through a small thread pool."""
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
import torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd

torch.set_num_threads(1)


class UnitScale(torch.autograd.Function):
    """x / rms(x); wants single precision."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        inv = (x * x).mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x, inv)
        return x * inv

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, inv = ctx.saved_tensors
        return inv * (g - x * inv * (g * x * inv).mean(-1, keepdim=True))


class Trunk(nn.Module):
    """Pretrained on raw counts, shipped in float16."""

    def __init__(self, inputs, width):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        with torch.no_grad():
            self.first.weight.mul_(6.0)

    def forward(self, counts):
        h = torch.relu(self.first(counts))
        h = UnitScale.apply(h)
        return torch.relu(self.second(h.to(self.second.weight.dtype)))


def spectra(n, templates, gen):
    y = torch.randint(0, len(templates), (n,), generator=gen)
    rate = templates[y] * (0.5 + torch.rand(n, 1, generator=gen))
    return torch.poisson(rate, generator=gen), y


class Parallel:
    def __init__(self, trunk, head, shards=2):
        self.trunk, self.head = trunk, head
        self.pool = ThreadPoolExecutor(shards)
        self.shards = shards

    def _shard(self, args):
        x, y = args
        logits = self.head(self.trunk(x).float())
        return F.cross_entropy(logits.float(), y, reduction="sum")

    def loss(self, x, y):
        with torch.autocast("cpu", torch.float16):
            parts = self.pool.map(self._shard, zip(x.chunk(self.shards), y.chunk(self.shards)))
            return sum(parts) / len(y)


def main():
    torch.manual_seed(23)
    gen = torch.Generator().manual_seed(23)
    templates = 200 + 250 * torch.rand(6, 48, generator=gen) ** 2
    x, y = spectra(3000, templates, gen)
    xv, yv = spectra(800, templates, gen)
    x, xv = x.half(), xv.half()
    trunk = Trunk(48, 64).half().requires_grad_(False)
    head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))
    work = Parallel(trunk, head)
    opt = torch.optim.Adam(head.parameters(), lr=5e-3)
    for step in range(400):
        idx = torch.randint(0, len(x), (64,), generator=gen)
        loss = work.loss(x[idx], y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 80 == 0:
            print(step, f"{loss.item():.4f}")
    with torch.no_grad():
        print("RESULT", work.loss(xv, yv).item())
    work.pool.shutdown()


if __name__ == "__main__":
    main()
