import torch
from torch import nn
from contextlib import contextmanager

torch.set_num_threads(1)
torch.manual_seed(120)


def sessions(n, size, drift):
    """Brain signals: within one session all trials share a level of attention."""
    for _ in range(n):
        level = torch.randn(1, 1)
        mix = torch.tensor([[1.0, -0.5, 0.8, 0.3, -1.0, 0.6, 0.2, -0.4]])
        trials = level * mix * drift + 0.4 * torch.randn(size, 8)
        yield trials, (level.expand(size, 1) + 0.05 * torch.randn(size, 1))


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(),
                         nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))

    def hold_norms(self):
        for part in self:
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
                part.requires_grad_(False)


@contextmanager
def measuring(net):
    net.eval()
    with torch.no_grad():
        yield
    net.train()


def fit(net, batches, lr):
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=lr)
    for step, (x, y) in enumerate(batches):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step} check {check(net):.4f}")


def check(net):
    with measuring(net):
        return nn.functional.mse_loss(net(held_out[0]), held_out[1]).item()


held_out = [torch.cat(part) for part in zip(*sessions(200, 2, 1.5))]
pool = [torch.cat(part) for part in zip(*sessions(400, 4, 1.0))]
net = Encoder()
many = (torch.randperm(len(pool[0]))[:64] for _ in range(40))
fit(net, ((pool[0][i], pool[1][i]) for i in many), lr=5e-3)
net.hold_norms()
fit(net, sessions(80, 12, 1.5), lr=1e-3)
print("RESULT", check(net))
