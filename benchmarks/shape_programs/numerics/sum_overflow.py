"""Where is the cart? Integrates a learned wheel speed (mm per tick) into a track in metres."""
import torch
from torch import nn

torch.manual_seed(30)
torch.set_num_threads(1)
TICKS = 48


def rides(n):
    speed = 1800 + 900 * torch.sin(torch.linspace(0, 6, TICKS) + 6 * torch.rand(n, 1)) * torch.rand(n, 1)
    slip = torch.rand(n, TICKS)
    wheel = torch.stack([speed / 1000 * (1 + 0.5 * slip), slip], -1) + 0.02 * torch.randn(n, TICKS, 2)
    return wheel, speed.cumsum(1) / 1000


class Odometer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
        self.typical = 1500.0

    def forward(self, wheel):
        speed = self.typical * (1 + self.net(wheel).squeeze(-1))
        return torch.cumsum(speed, 1) / 1000


def error(track, true_track):
    return (track.float() - true_track).square().mean()


net = Odometer()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(150):
    wheel, true_track = rides(64)
    with torch.autocast("cpu", torch.float16):
        track = net(wheel)
    loss = error(track, true_track)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
wheel, true_track = rides(400)
with torch.no_grad():
    print("RESULT", error(net(wheel), true_track).item())
