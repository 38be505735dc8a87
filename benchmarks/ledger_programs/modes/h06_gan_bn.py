import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def real(n):
    a = torch.rand(n) * 6.283
    return torch.stack([a.cos(), a.sin()], 1) * 2 + 0.1 * torch.randn(n, 2)


netG = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(),
                     nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
netD = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
                     nn.Linear(64, 1))
optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
fixed = torch.randn(1000, 8)


def sample(z):
    netG.eval()
    with torch.no_grad():
        out = netG(z)
    netG.train()
    return out


def radius_error(pts):
    return (pts.norm(dim=1) - 2).abs().mean().item()


for it in range(500):
    z = torch.randn(64, 8)
    fake = netG(z)
    lossD = F.softplus(-netD(real(64))).mean() + F.softplus(netD(fake.detach())).mean()
    optD.zero_grad()
    lossD.backward()
    optD.step()

    netD.requires_grad_(False)
    netD.eval()
    lossG = F.softplus(-netD(fake)).mean()
    optG.zero_grad()
    lossG.backward()
    optG.step()
    netD.train()
    netD.requires_grad_(True)
    if it % 100 == 0:
        print(it, lossD.item(), lossG.item(), radius_error(sample(fixed)))

print("result:", radius_error(sample(fixed)))
