"""Wasserstein GAN on a 1-d mixture."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
CLIP = 0.1


def real(n):
    c = torch.randint(0, 2, (n, 1)).float() * 4 - 2
    return c + 0.3 * torch.randn(n, 1)


G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
C = nn.Sequential(nn.Linear(1, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.RMSprop(G.parameters(), lr=2e-3)
opt_c = torch.optim.RMSprop(C.parameters(), lr=2e-3)

for it in range(300):
    for p in C.parameters():
        p.requires_grad_(True)
    for _ in range(4):
        with torch.no_grad():
            fake = G(torch.randn(64, 4))
        loss_c = C(fake).mean() - C(real(64)).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        for p in C.parameters():
            p.data.clamp_(-CLIP, CLIP)
    for p in C.parameters():
        p.requires_grad_(False)
    loss_g = -C(G(torch.randn(64, 4))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if it % 50 == 0:
        print(it, -loss_c.item())

with torch.no_grad():
    a = G(torch.randn(4000, 4)).squeeze(1).sort().values
    b = real(4000).squeeze(1).sort().values
print("result:", (a - b).abs().mean().item())
