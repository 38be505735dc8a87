"""Denoising diffusion on a spiral: a time embedding network and a denoiser at separate rates."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(41)
STEPS = 30
betas = torch.linspace(1e-3, 0.25, STEPS)
keep = (1 - betas).cumprod(0)


def spiral(n):
    a = torch.rand(n) * 9 + 1
    return torch.stack([a * a.cos(), a * a.sin()], 1) / 6 + 0.03 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = nn.Embedding(STEPS, width)
        self.enter = nn.Linear(2, width)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.leave = nn.Linear(width, 2)

    def forward(self, v, t):
        return self.leave(self.body(self.enter(v) + self.time(t)))


def describe(name, params):
    print(f"{name}: {sum(p.numel() for p in params)} weights")
    return params


def groups(net):
    trunk = describe("trunk", (p for n, p in net.named_parameters() if n.startswith(("body", "leave"))))
    entry = [p for n, p in net.named_parameters() if n.startswith(("time", "enter"))]
    return [{"params": trunk, "lr": 4e-3}, {"params": entry, "lr": 8e-3}]


def noise_loss(net, clean):
    t = torch.randint(0, STEPS, (len(clean),))
    eps = torch.randn_like(clean)
    noisy = keep[t].sqrt()[:, None] * clean + (1 - keep[t]).sqrt()[:, None] * eps
    return nn.functional.mse_loss(net(noisy, t), eps)


net = Denoiser()
opt = torch.optim.Adam(groups(net))
for step in range(150):
    loss = noise_loss(net, spiral(128))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", noise_loss(net, spiral(4000)).item())
