import math

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
Z = 8


def real_batch(n):
    k = torch.randint(0, 6, (n,)) * (2 * math.pi / 6)
    return torch.stack([k.cos(), k.sin()], 1) * 1.5 + 0.1 * torch.randn(n, 2)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, o))


G, C = mlp(Z, 2), mlp(2, 1)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.9))
opt_c = torch.optim.Adam(C.parameters(), lr=2e-3, betas=(0.5, 0.9))


def gradient_penalty(real, fake):
    a = torch.rand(len(real), 1)
    x = (a * real + (1 - a) * fake).requires_grad_(True)
    g = torch.autograd.grad(C(x).sum(), x, create_graph=True)[0]
    return ((g.norm(dim=1) - 1) ** 2).mean()


one = torch.tensor(1.0)
mone = -one
for it in range(350):
    for _ in range(3):
        C.zero_grad()
        real = real_batch(96)
        fake = G(torch.randn(96, Z))
        C(real).mean().backward(mone)
        C(fake.detach()).mean().backward(one)
        gp = 2.0 * gradient_penalty(real, fake.detach())
        gp.backward()
        opt_c.step()
    G.zero_grad()
    g_loss = C(G(torch.randn(96, Z))).mean()
    g_loss.backward(mone)
    opt_g.step()
    if it % 100 == 0:
        print(f"{it} critic on fake {g_loss.item():.3f} gp {gp.item():.3f}")

with torch.no_grad():
    a, b = real_batch(2000), G(torch.randn(2000, Z))
    th = torch.linspace(0, math.pi, 24)
    dirs = torch.stack([th.cos(), th.sin()])
    print("result:", round(((a @ dirs).sort(0)[0] - (b @ dirs).sort(0)[0]).abs().mean().item(), 4))
