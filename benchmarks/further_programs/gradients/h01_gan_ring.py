"""Plain GAN on a ring of Gaussians. The generator pass leaves gradients in the discriminator which are thrown away."""
import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(2)

Z = 4


def real(n):
    k = torch.randint(0, 8, (n,)).float() * (2 * math.pi / 8)
    return torch.stack([k.cos(), k.sin()], 1) + 0.2 * torch.randn(n, 2)


G = nn.Sequential(nn.Linear(Z, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=3e-4, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.9))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)


def sliced_distance(a, b, n=64):
    g = torch.Generator().manual_seed(0)
    v = nn.functional.normalize(torch.randn(2, n, generator=g), dim=0)
    return ((a @ v).sort(0).values - (b @ v).sort(0).values).abs().mean().item()


for step in range(900):
    # discriminator
    fake = G(torch.randn(128, Z))
    loss_d = bce(D(real(128)), ones) + bce(D(fake.detach()), zeros)
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    # generator, same fakes; D collects gradients here too and drops them at its next zero_grad
    loss_g = bce(D(fake), ones)
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 300 == 0:
        print(step, loss_d.item(), loss_g.item())

with torch.no_grad():
    d = sliced_distance(G(torch.randn(2048, Z)), real(2048))
print("RESULT", d)
