"""Redraw a cloud of pixels from a code of it: a point autoencoder with the nearest-point loss."""
import torch
from torch import nn

torch.manual_seed(28)
torch.set_num_threads(1)
POINTS, CODE, FRAME = 16, 6, 640.0


def clouds(n):
    centre = 280 + 210 * torch.rand(n, 1, 2)
    radius = 40 + 60 * torch.rand(n, 1, 1)
    angle = torch.linspace(0, 6.28, POINTS + 1)[:-1]
    ring = torch.stack([angle.cos(), angle.sin()], -1)
    return centre + radius * ring + 3 * torch.randn(n, POINTS, 2)


def nearest_point(a, b):
    gap = a.unsqueeze(2) - b.unsqueeze(1)
    apart = ((gap * gap).sum(-1) + 0.01).sqrt()
    return apart.amin(2).mean() + apart.amin(1).mean()


class Redraw(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2 * POINTS, 64), nn.ReLU(), nn.Linear(64, CODE))
        self.decode = nn.Sequential(nn.Linear(CODE, 64), nn.ReLU(), nn.Linear(64, 2 * POINTS))

    def forward(self, cloud):
        flat = cloud.flatten(1) / FRAME - 0.5
        return (self.decode(self.encode(flat)) * FRAME).view_as(cloud)


net = Redraw()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(120):
    cloud = clouds(32)
    with torch.autocast("cpu", torch.float16):
        drawn = net(cloud)
        loss = nearest_point(drawn, cloud.to(drawn.dtype))
    opt.zero_grad()
    (loss.float() / 10).backward()
    opt.step()
    if step % 30 == 0:
        print(step, loss.item())
cloud = clouds(256)
with torch.no_grad():
    print("RESULT", nearest_point(net(cloud), cloud).item())
