import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(41)
STEPS = 50
beta = torch.linspace(1e-3, 0.2, STEPS)
alpha = 1 - beta
alpha_bar = torch.cumprod(alpha, 0)


def clusters(n):
    left = (torch.rand(n, 1) < 0.15).float()
    return (1 - 2 * left) * torch.tensor([1.2, 0.8]) + 0.1 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self, h=96):
        super().__init__()
        self.time = nn.Embedding(STEPS, 16)
        self.body = nn.Sequential(nn.Linear(18, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 2))

    def forward(self, x, t):
        return self.body(torch.cat([x, self.time(t)], 1))


def noised(x0, t):
    eps = torch.randn_like(x0)
    keep = alpha[t][:, None]
    return keep.sqrt() * x0 + (1 - keep).sqrt() * eps, eps


@torch.no_grad()
def generate(net, n):
    x = torch.randn(n, 2)
    for k in reversed(range(STEPS)):
        e = net(x, torch.full((n,), k))
        x = (x - beta[k] / (1 - alpha_bar[k]).sqrt() * e) / alpha[k].sqrt()
        if k > 0:
            x = x + beta[k].sqrt() * torch.randn_like(x)
    return x


net = Denoiser()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for it in range(2000):
    x0 = clusters(128)
    xt, eps = noised(x0, t := torch.randint(0, STEPS, (128,)))
    loss = (net(xt, t) - eps).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 400 == 0:
        print(it, f"{loss.item():.4f}")
def distance(a, b):
    angles = torch.linspace(0, 3.14159, 20)
    axes = torch.stack([angles.cos(), angles.sin()])
    return ((a @ axes).sort(0).values - (b @ axes).sort(0).values).abs().mean()


samples = generate(net, 2000)
print("RESULT", distance(samples, clusters(2000)).item())
