import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(12)

Z, BATCH, STEPS = 6, 128, 1800
R1_EVERY, R1_GAMMA = 8, 0.2


def ring(n):
    a = 2 * math.pi * torch.rand(n)
    r = 1.2 + 0.1 * torch.randn(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1)


def build(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, o))


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def r1_penalty(disc, real):
    real = real.detach().requires_grad_(True)
    grad, = torch.autograd.grad(disc(real).sum(), real, create_graph=True)
    return grad.pow(2).sum(1).mean()


@torch.no_grad()
def update_average(avg, net, step):
    decay = min(0.995, (1 + step) / (10 + step))
    for a, p in zip(avg.parameters(), net.parameters()):
        a.lerp_(p, 1 - decay)


def main():
    gen, disc = build(Z, 2), build(2, 1)
    gen_avg = copy.deepcopy(gen).requires_grad_(False)
    opt_g = torch.optim.Adam(gen.parameters(), lr=5e-4, betas=(0.0, 0.99))
    opt_d = torch.optim.Adam(disc.parameters(), lr=2e-3, betas=(0.0, 0.99))
    anneal = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.05, total_iters=STEPS) for o in (opt_g, opt_d)]

    for step in range(STEPS):
        disc.requires_grad_(True)
        real = ring(BATCH)
        fake = gen(torch.randn(BATCH, Z)).detach()
        d_loss = F.relu(1 - disc(real)).mean() + F.relu(1 + disc(fake)).mean()
        opt_d.zero_grad()
        d_loss.backward()
        if step % R1_EVERY == 0:
            (R1_GAMMA / 2 * R1_EVERY * r1_penalty(disc, real)).backward()
        opt_d.step()

        disc.requires_grad_(False)
        g_loss = -disc(gen(torch.randn(BATCH, Z))).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        update_average(gen_avg, gen, step)
        for s in anneal:
            s.step()
        if step % 300 == 0:
            print(f"{step:5d} d {d_loss.item():.3f} g {g_loss.item():+.3f}")

    with torch.no_grad():
        d = energy_distance(gen_avg(torch.randn(1500, Z)), ring(1500))
    print("RESULT", d)


main()
