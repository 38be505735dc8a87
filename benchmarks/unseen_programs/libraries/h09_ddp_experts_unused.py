"""Mixture of experts under DDP with hard routing, so that many experts get no gradient."""
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(58)

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SITES, FEATURES = 8, 6


def wells(n, seed, site=None):
    """Every site has its own response; each batch is drawn from two sites."""
    world = torch.Generator().manual_seed(2)
    weight = 0.4 * torch.randn(SITES, FEATURES, generator=world)
    freq = 1 + torch.rand(SITES, generator=world)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=g)
    s = torch.randint(0, SITES, (n,), generator=g)
    if site is not None:
        s = torch.where(torch.rand(n, generator=g) < 0.5, site, (site + 3) % SITES)
    y = torch.sin(freq[s] * (weight[s] * x).sum(1)) + 0.3 * s
    return x, s, y + 0.05 * torch.randn(n, generator=g)


class SiteModel(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(FEATURES, width), nn.GELU())
        self.experts = nn.ModuleList([
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
            for _ in range(SITES)
        ])

    def forward(self, x, s):
        h = self.stem(x)
        out = h.new_zeros(len(x))
        for k in s.unique().tolist():
            pick = s == k
            out = out.masked_scatter(pick, self.experts[k](h[pick]).squeeze(-1))
        return out


def averaged(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return (value / dist.get_world_size()).item()


def train(tmp):
    dist.init_process_group("gloo", init_method=f"file://{tmp}/store", rank=0, world_size=1)
    model = DistributedDataParallel(SiteModel(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for step in range(200):
        site = step % SITES
        x, s, y = wells(96, 1000 + step, site)
        x2, s2, y2 = wells(96, 5000 + step, site)
        optimizer.zero_grad(set_to_none=True)
        with model.no_sync():
            first = nn.functional.mse_loss(model(x, s), y) / 2
            first.backward()
        second = nn.functional.mse_loss(model(x2, s2), y2) / 2
        second.backward()
        idle = sum(all(p.grad is None for p in e.parameters()) for e in model.module.experts)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 40 == 39:
            print(f"step {step} loss {averaged(first + second):.4f} idle experts {idle}")
    dist.destroy_process_group()
    return model.module


def main():
    with tempfile.TemporaryDirectory() as tmp:
        model = train(tmp).eval()
    x, s, y = wells(2000, 3)
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x, s), y).item()
    print(f"RESULT {error:.4f}")


if __name__ == "__main__":
    main()
