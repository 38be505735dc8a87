"""Machine faults from vibration features. Readings come from a logger that now and then glitches."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)
DIM, KINDS = 10, 3
centres = 2 * torch.randn(KINDS, DIM)
unit = torch.logspace(-1, 2, DIM)


class Standardise(nn.Module):
    """Batch figures while training, the slow average of them in use."""

    def __init__(self, dim, pace=0.05):
        super().__init__()
        self.pace = pace
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("width", torch.ones(dim))

    def forward(self, x):
        if not self.training:
            return (x - self.centre) / self.width
        width, centre = torch.std_mean(x, 0)
        self.centre.lerp_(centre.detach(), self.pace)
        self.width.lerp_(width.detach(), self.pace)
        return (x - centre) / (width + 1e-5)


def logger(steps, glitch=()):
    for k in range(steps):
        kind = torch.randint(0, KINDS, (64,))
        x = (centres[kind] + 1.5 * torch.randn(64, DIM)) * unit
        if k in glitch:
            x[5, 3] = float("inf")
        yield x, kind


net = nn.Sequential(Standardise(DIM), nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, KINDS))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for x, kind in logger(130, glitch=(41,)):
    loss = F.cross_entropy(net(x), kind)
    if not torch.isfinite(loss):
        print("glitch, left out")
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
net.eval()
with torch.no_grad():
    losses = [F.cross_entropy(net(x), kind) for x, kind in logger(10)]
print("RESULT", torch.stack(losses).mean().item())
