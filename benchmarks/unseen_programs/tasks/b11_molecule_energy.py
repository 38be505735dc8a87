"""Fits molecular energies to counts of fragments in mixed precision."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(37)

FRAGMENTS = 20
DTYPE = torch.float16


def molecules(n, gen, table):
    counts = torch.poisson(torch.full((n, FRAGMENTS), 1.5), generator=gen)
    linear = counts @ table
    strain = 5.0 * torch.sin(0.5 * counts[:, 0] * counts[:, 1])
    return counts, linear + strain + 0.3 * torch.randn(n, generator=gen)


class EnergyNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.lift = nn.Linear(FRAGMENTS, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.linear = nn.Linear(FRAGMENTS, 1)
        self.out = nn.Linear(width, 1)

    def forward(self, counts):
        h = torch.relu(self.lift(counts))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return (self.out(h) + self.linear(counts)).squeeze(-1)


class SquaredError(nn.Module):
    """Squared error in kJ/mol over the batch."""

    def forward(self, pred, target):
        return (pred.float() - target).pow(2).sum()


def fit(net, data, val, epochs=15, batch=100, lr=5e-3):
    counts, energy = data
    criterion = SquaredError()
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    log = []
    for epoch in range(epochs):
        net.train()
        for pick in torch.randperm(len(counts)).split(batch):
            with torch.autocast("cpu", dtype=DTYPE):
                pred = net(counts[pick])
            loss = criterion(pred, energy[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        log.append(mae(net, *val))
        print(f"epoch {epoch} lr {sched.get_last_lr()[0]:.4f} mae {log[-1]:.3f}")
    return log


@torch.no_grad()
def mae(net, counts, energy):
    net.eval()
    with torch.autocast("cpu", dtype=DTYPE):
        pred = net(counts)
    return (pred.float() - energy).abs().mean().item()


def main():
    gen = torch.Generator().manual_seed(58)
    table = -2.0 - 3.0 * torch.rand(FRAGMENTS, generator=gen)
    train, val = molecules(2000, gen, table), molecules(500, gen, table)
    print("mean energy", round(train[1].mean().item(), 1))
    print("RESULT", fit(EnergyNet(), train, val)[-1])


if __name__ == "__main__":
    main()
