"""WGAN-GP: the critic's requires_grad is switched off for the generator step, the generator has BatchNorm and is
put in eval mode for sampling only."""
import torch
from torch import nn

torch.manual_seed(4)
torch.set_num_threads(1)
Z, B = 4, 64

gen = nn.Sequential(nn.Linear(Z, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(),
                    nn.Linear(48, 2))
critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))


def real(n):
    x = torch.randn(n, 1)
    return torch.cat([x, 0.5 * x ** 2 - 0.5 + 0.1 * torch.randn(n, 1)], 1)


def penalty(a, b):
    t = torch.rand(len(a), 1)
    x = (t * a + (1 - t) * b).requires_grad_(True)
    g, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return ((g.norm(dim=1) - 1) ** 2).mean()


def sliced(a, b):
    v = nn.functional.normalize(torch.randn(2, 50, generator=torch.Generator().manual_seed(0)), dim=0)
    return ((a @ v).sort(0).values - (b @ v).sort(0).values).abs().mean().item()


def sample(n):
    gen.eval()
    with torch.no_grad():
        out = gen(torch.randn(n, Z))
    gen.train()
    return out


for step in range(350):
    critic.requires_grad_(True)
    for _ in range(3):
        x = real(B)
        with torch.no_grad():
            fake = gen(torch.randn(B, Z))
        loss_c = critic(fake).mean() - critic(x).mean() + 5 * penalty(x, fake)
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
    critic.requires_grad_(False)
    loss_g = -critic(gen(torch.randn(B, Z))).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if step % 100 == 0:
        print(step, loss_c.item(), sliced(sample(1000), real(1000)))

print("RESULT", sliced(sample(3000), real(3000)))
