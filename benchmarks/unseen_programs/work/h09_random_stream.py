"""Heat equation surrogate fed by an endless stream of random cases from loader workers."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
torch.manual_seed(49)

GRID, MODES, STEPS, BATCH = 24, 4, 300, 32


def heat_case(gen=None):
    """A random initial temperature on a rod with cold ends and its state a little later."""
    x = torch.linspace(0, 1, GRID)
    k = torch.arange(1, MODES + 1).float()
    amp = torch.randn(MODES, generator=gen) / k
    alpha = 0.01 + 0.04 * torch.rand(1, generator=gen)
    basis = torch.sin(math.pi * k[:, None] * x)
    later = amp * torch.exp(-alpha * (math.pi * k) ** 2)
    start = amp @ basis + 0.02 * torch.randn(GRID, generator=gen)
    return torch.cat([start, alpha * 20]), later @ basis


class HeatCases(IterableDataset):
    """Each worker draws its own cases: the loader seeds the generator of torch per worker."""

    def __iter__(self):
        while True:
            yield heat_case()


class Surrogate(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(GRID + 1, width), nn.GELU(), nn.Linear(width, width))
        self.out = nn.Sequential(nn.GELU(), nn.Linear(width, GRID))
        self.skip = nn.Linear(GRID, GRID, bias=False)

    def forward(self, x):
        return self.skip(x[:, :GRID]) + self.out(self.mix(x))


def main():
    loader = DataLoader(HeatCases(), batch_size=BATCH, num_workers=2)
    gen = torch.Generator().manual_seed(490)
    cases = [heat_case(gen) for _ in range(400)]
    v_x = torch.stack([c[0] for c in cases])
    v_y = torch.stack([c[1] for c in cases])
    model = Surrogate()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)

    def validate():
        with torch.no_grad():
            return (F.mse_loss(model(v_x), v_y) / v_y.var()).item()

    stream = iter(loader)
    for step in range(STEPS):
        x, y = next(stream)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.5f} val {validate():.5f}")
    del stream
    print(f"RESULT {validate():.6f}")


if __name__ == "__main__":
    main()
