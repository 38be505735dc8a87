"""Digits-like glyphs, with a first layer that is set from one batch of data before training."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(16)
torch.set_num_threads(1)
SIDE, GLYPHS = 8, 6
shapes = (torch.rand(GLYPHS, SIDE - 2, SIDE - 2) < 0.5).float()


def glyphs(n):
    kind = torch.randint(0, GLYPHS, (n,))
    ink = (shapes[kind] * (0.5 + torch.rand(n, 1, 1)) + 0.7 * torch.randn(n, SIDE - 2, SIDE - 2)).relu()
    return F.pad(ink, (1, 1, 1, 1)).flatten(1), kind


class Affine(nn.Module):
    """y = (x + shift) * exp(gain)"""

    def __init__(self, dim):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(dim))
        self.gain = nn.Parameter(torch.zeros(dim))

    @classmethod
    @torch.no_grad()
    def from_data(cls, x):
        layer = cls(x.shape[1])
        width, centre = torch.std_mean(x, 0)
        layer.shift.copy_(-centre)
        layer.gain.copy_(-torch.log(width))
        return layer

    def forward(self, x):
        return (x + self.shift) * torch.exp(self.gain)


net = nn.Sequential(Affine.from_data(glyphs(512)[0]), nn.Linear(SIDE * SIDE, 48), nn.ReLU(), nn.Linear(48, GLYPHS))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(100):
    x, kind = glyphs(64)
    loss = F.cross_entropy(net(x), kind)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, loss.item())
x, kind = glyphs(1000)
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(x), kind).item())
