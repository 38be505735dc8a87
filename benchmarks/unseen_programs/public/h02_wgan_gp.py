"""Trains a Wasserstein GAN with gradient penalty on a ring of Gaussians."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(103)

BATCH, CRITIC_ITERS, LAMBDA, ITERS = 128, 5, 0.1, 220


def ring(n):
    k = torch.randint(0, 8, (n,)).float() * math.pi / 4
    return torch.stack([k.cos(), k.sin()], 1) * 2 / 1.414 + 0.03 * torch.randn(n, 2)


def net(a, width, b):
    return nn.Sequential(nn.Linear(a, width), nn.ReLU(True), nn.Linear(width, width), nn.ReLU(True),
                         nn.Linear(width, width), nn.ReLU(True), nn.Linear(width, b))


def calc_gradient_penalty(critic, real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mixed)
    grad = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True,
                               retain_graph=True, only_inputs=True)[0]
    return ((grad.norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


@torch.no_grad()
def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean()
            - torch.cdist(b, b).mean()).item()


generator, critic = net(2, 96, 2), net(2, 96, 1)
opt_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
held_out = ring(1000)
for it in range(1, ITERS + 1):
    for p in critic.parameters():
        p.requires_grad_(True)
    for _ in range(CRITIC_ITERS):
        real = ring(BATCH)
        with torch.no_grad():
            fake = generator(torch.randn(BATCH, 2))
        d_real, d_fake = critic(real).mean(), critic(fake).mean()
        penalty = calc_gradient_penalty(critic, real, fake)
        d_cost = d_fake - d_real + penalty
        opt_d.zero_grad()
        d_cost.backward()
        opt_d.step()
    for p in critic.parameters():
        p.requires_grad_(False)
    g_cost = -critic(generator(torch.randn(BATCH, 2))).mean()
    opt_g.zero_grad()
    g_cost.backward()
    opt_g.step()
    if it % 44 == 0:
        with torch.no_grad():
            sample = generator(torch.randn(1000, 2))
        print(f"iter {it} critic {d_cost.item():.4f} wasserstein {(d_real - d_fake).item():.4f} "
              f"gen {g_cost.item():.4f} energy {energy_distance(sample, held_out):.4f}")
print("RESULT", round(energy_distance(sample, held_out), 5))
