import math

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
Z = 8


def real_batch(n):
    k = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return torch.stack([k.cos(), k.sin()], 1) * 1.5 + 0.08 * torch.randn(n, 2)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, o))


netG = mlp(Z, 2)
netD = mlp(2, 1)
optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
B = 128
ones, zeros = torch.ones(B, 1), torch.zeros(B, 1)


def update_discriminator():
    fake = netG(torch.randn(B, Z)).detach()
    errD_real = criterion(netD(real_batch(B)), ones)
    errD_fake = criterion(netD(fake), zeros)
    errD = errD_real + errD_fake
    errD.backward()
    optimizerD.step()
    optimizerD.zero_grad()
    return errD.item()


def update_generator():
    optimizerG.zero_grad()
    errG = criterion(netD(netG(torch.randn(B, Z))), ones)
    errG.backward()
    optimizerG.step()
    return errG.item()


@torch.no_grad()
def sliced_distance(n=2000):
    a, b = real_batch(n), netG(torch.randn(n, Z))
    th = torch.linspace(0, math.pi, 24)
    dirs = torch.stack([th.cos(), th.sin()])
    return ((a @ dirs).sort(0)[0] - (b @ dirs).sort(0)[0]).abs().mean().item()


for it in range(900):
    d = update_discriminator()
    g = update_generator()
    if it % 300 == 0:
        print(f"[{it}] Loss_D: {d:.4f} Loss_G: {g:.4f}")

print("result:", round(sliced_distance(), 4))
