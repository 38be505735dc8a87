"""Heat flux regression with two half-nets trained in turn; a constant loss scale for the first part."""
import torch
from torch import nn

torch.manual_seed(24)
torch.set_num_threads(1)


def plates(n):
    x = torch.rand(n, 5) * 2 - 1
    flux = 2 * x[:, :1] * torch.exp(x[:, 1:2]) + torch.sin(3 * x[:, 2:3]) * x[:, 3:4]
    return x, flux


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 1))
        self.b = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        return self.a(x) + self.b(x)


x, y = plates(2000)
xv, yv = plates(500)
net = Halves()
opts = [torch.optim.Adam(half.parameters(), lr=2e-2) for half in (net.a, net.b)]
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for step in range(140):
    pick = torch.randint(0, len(x), (128,))
    net.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = net(x[pick])
    scaler.scale((out.float() - y[pick]).pow(2).mean()).backward()
    scaler.step(opts[step % 2])
    if step < 40:
        scaler.update(512.0)
    else:
        scaler.update()

with torch.no_grad():
    print("RESULT", float((net(xv) - yv).pow(2).mean()))
