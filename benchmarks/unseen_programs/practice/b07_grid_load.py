"""Predict overload at the nodes of an electric grid with a message-passing network."""
import torch
torch.set_num_threads(1)
torch.manual_seed(17)
from torch import nn
import torch.nn.functional as F

NODES, LINES = 120, 420


def random_grid(gen):
    src = torch.randint(NODES, (LINES,), generator=gen)
    hubs = torch.randint(NODES // 6, (LINES,), generator=gen)
    anywhere = torch.randint(NODES, (LINES,), generator=gen)
    dst = torch.where(torch.rand(LINES, generator=gen) < 0.5, hubs, anywhere)
    capacity = torch.rand(LINES, generator=gen) + 0.2
    demand = torch.randn(NODES, 1, generator=gen)
    inflow = torch.zeros(NODES).index_add(0, dst, capacity * demand[src, 0].relu())
    target = torch.tanh(0.3 * inflow - 0.5 * demand[:, 0])
    target = target + 0.05 * torch.randn(NODES, generator=gen)
    return demand, src, dst, capacity[:, None], target


class Exchange(nn.Module):
    """One round in which every node collects what its incoming lines carry."""

    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(dim + 1, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.update = nn.GRUCell(dim, dim)

    def forward(self, h, src, dst, capacity):
        m = self.message(torch.cat([h[src], capacity], 1))
        inbox = torch.zeros_like(h)
        inbox[dst] += m
        return self.update(inbox, h)


class GridNet(nn.Module):
    def __init__(self, dim=32, rounds=2):
        super().__init__()
        self.lift = nn.Linear(1, dim)
        self.rounds = nn.ModuleList(Exchange(dim) for _ in range(rounds))
        self.read = nn.Linear(dim, 1)

    def forward(self, demand, src, dst, capacity):
        h = torch.tanh(self.lift(demand))
        for r in self.rounds:
            h = r(h, src, dst, capacity)
        return self.read(h).squeeze(1)


def evaluate(model, grids):
    model.eval()
    with torch.no_grad():
        errors = [F.mse_loss(model(*g[:4]), g[4]) for g in grids]
    model.train()
    return torch.stack(errors).mean().item()


def main():
    gen = torch.Generator().manual_seed(2)
    train = [random_grid(gen) for _ in range(150)]
    held_out = [random_grid(gen) for _ in range(30)]
    model = GridNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=150, gamma=0.4)
    for step in range(400):
        demand, src, dst, capacity, target = train[step % len(train)]
        loss = F.mse_loss(model(demand, src, dst, capacity), target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 100 == 99:
            print(f"step {step + 1} held-out {evaluate(model, held_out):.4f}")
    print("RESULT", evaluate(model, held_out))


main()
