import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, c, p=0.0):
        super().__init__()
        self.norm = nn.GroupNorm(4, c)
        self.conv = nn.Conv1d(c, c, 3, padding=1)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.conv(F.silu(self.norm(x))))


class UNetish(nn.Module):
    """Noise predictor for 1-d diffusion."""

    def __init__(self, c=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, c))
        self.inp = nn.Conv1d(1, c, 3, padding=1)
        self.blocks = nn.ModuleList([Block(c), Block(c), Block(c)])
        self.out = nn.Conv1d(c, 1, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t[:, None])[:, :, None]
        for b in self.blocks:
            h = b(h)
        return self.out(h)


def waves(n):
    t = torch.linspace(0, 6.28, 16)
    return torch.sin(torch.randint(1, 4, (n, 1)) * t + 6.28 * torch.rand(n, 1))[:, None]


def noised(n):
    x0 = waves(n)
    t = torch.rand(n)
    a = torch.cos(t * 1.57)[:, None, None]
    eps = torch.randn_like(x0)
    return a * x0 + (1 - a ** 2).sqrt() * eps, t, eps


@torch.no_grad()
def sample(model, n=4, steps=8):
    model.eval()
    x = torch.randn(n, 1, 16)
    for k in range(steps, 0, -1):
        t = torch.full((n,), k / steps * 0.95)
        a = torch.cos(t * 1.57)[:, None, None]
        eps = model(x, t)
        x0 = ((x - (1 - a ** 2).sqrt() * eps) / a.clamp(min=0.1)).clamp(-1.5, 1.5)
        a2 = torch.cos((t - 0.95 / steps) * 1.57)[:, None, None]
        x = a2 * x0 + (1 - a2 ** 2).clamp(min=0).sqrt() * eps
    return x


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = UNetish().eval()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for it in range(350):
        x, t, eps = noised(64)
        loss = F.mse_loss(model(x, t), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 100 == 0:
            print(it, loss.item(), "sample std", sample(model).std().item())
    with torch.no_grad():
        x, t, eps = noised(1000)
        print("result:", F.mse_loss(model(x, t), eps).item())


main()
