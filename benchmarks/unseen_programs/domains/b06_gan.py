import math

import torch
import torch.nn.functional as F
from torch import nn, optim

torch.set_num_threads(1)
torch.manual_seed(8)


class Config:
    z_dim = 8
    hidden = 64
    batch = 128
    steps = 2000
    lr_g = 5e-4
    lr_d = 1e-3


def mlp(i, o, h):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def real_batch(n):
    k = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return torch.stack([k.cos(), k.sin()], 1) * 1.5 + 0.2 * torch.randn(n, 2)


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def freeze(net):
    for p in net.parameters():
        p.requires_grad_(False)


class GANTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.G = mlp(cfg.z_dim, 2, cfg.hidden)
        self.D = mlp(2, 1, cfg.hidden)
        self.opt_g = optim.Adam(self.G.parameters(), lr=cfg.lr_g, betas=(0.0, 0.99))
        self.opt_d = optim.Adam(self.D.parameters(), lr=cfg.lr_d, betas=(0.0, 0.99))
        self.sched = [optim.lr_scheduler.LinearLR(o, 1.0, 0.05, cfg.steps) for o in (self.opt_g, self.opt_d)]

    def noise(self, n):
        return torch.randn(n, self.cfg.z_dim)

    def discriminator_step(self):
        real = real_batch(self.cfg.batch)
        fake = self.G(self.noise(self.cfg.batch))
        noise_r, noise_f = 0.1 * torch.randn_like(real), 0.1 * torch.randn_like(fake)
        loss = F.softplus(-self.D(real + noise_r)).mean() + F.softplus(self.D(fake + noise_f)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self):
        freeze(self.D)
        fake = self.G(self.noise(self.cfg.batch))
        loss = F.softplus(-self.D(fake + 0.1 * torch.randn_like(fake))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()

    def fit(self):
        for it in range(self.cfg.steps):
            d = self.discriminator_step()
            g = self.generator_step()
            for s in self.sched:
                s.step()
            if it % 250 == 0:
                print(f"{it:4d} d {d:.3f} g {g:.3f}")

    @torch.no_grad()
    def evaluate(self):
        return energy_distance(self.G(self.noise(1500)), real_batch(1500))


if __name__ == "__main__":
    gan = GANTrainer(Config)
    gan.fit()
    print("RESULT", gan.evaluate())
