import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)


class Denoiser(nn.Module):
    """Predicts the noise of a two-dimensional diffusion."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 + 8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t):
        f = t[:, None] * torch.tensor([1.0, 2.0, 4.0, 8.0])
        return self.net(torch.cat([x, f.sin(), f.cos()], 1).to(self.net[0].weight.dtype))


def points(n):
    a = 6.283 * torch.rand(n)
    return torch.stack([a.cos() * (1 + 0.3 * (3 * a).sin()), a.sin() * (1 + 0.3 * (3 * a).sin())], 1)


def noised(n):
    x0, t, e = points(n), torch.rand(n), torch.randn(n, 2)
    alpha = torch.cos(t * 1.5)[:, None]
    return alpha * x0 + (1 - alpha ** 2).sqrt() * e, t, e


model = Denoiser()
average = copy.deepcopy(model).to(torch.bfloat16).requires_grad_(False)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
DECAY = 0.996

for step in range(1200):
    x, t, e = noised(64)
    loss = F.mse_loss(model(x, t), e)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.add_((p - a).to(a.dtype), alpha=1 - DECAY)
    if step % 300 == 0:
        print(step, loss.item())

average.eval()
with torch.no_grad():
    x, t, e = noised(6000)
    print("RESULT", F.mse_loss(average(x, t).float(), e).item())
