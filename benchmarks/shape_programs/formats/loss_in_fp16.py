"""Matching two views of the same molecule fingerprint by contrast."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
view_a, view_b = torch.randn(10, 24), torch.randn(10, 24)


def molecules(n, g):
    core = torch.randn(n, 10, generator=g)
    noise = 0.3 * torch.randn(2, n, 24, generator=g)
    return core @ view_a + noise[0], core @ view_b + noise[1]


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, x):
        z = self.layers(x)
        return z / z.norm(dim=-1, keepdim=True)


def contrast(za, zb, sharpness=16.0):
    agreement = (za @ zb.T * sharpness).exp()
    together = agreement.diagonal()
    return (agreement.sum(1) / together).log().mean() + (agreement.sum(0) / together).log().mean()


g = torch.Generator().manual_seed(9)
towers = nn.ModuleList([Tower(), Tower()])
optimizer = torch.optim.Adam(towers.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(120):
    a, b = molecules(48, g)
    with torch.autocast("cpu", torch.float16):
        za, zb = towers[0](a), towers[1](b)
    loss = contrast(za.half(), zb.half())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

with torch.no_grad():
    a, b = molecules(200, g)
    match = (towers[0](a) @ towers[1](b).T).argmax(1)
print("RESULT", (match != torch.arange(200)).float().mean().item())
