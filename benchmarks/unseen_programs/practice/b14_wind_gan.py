"""Train a GAN that draws pairs of wind speed and power of a turbine."""
import torch
torch.set_num_threads(1)
torch.manual_seed(104)
from torch import nn
import torch.nn.functional as F


def turbine(n, gen=None):
    wind = 2.2 * (-torch.log(torch.rand(n, generator=gen))) ** 0.5
    power = torch.sigmoid((wind - 2.0) * 3) + 0.05 * torch.randn(n, generator=gen)
    return torch.stack([wind - 2, 2 * power - 1], 1)


def net(n_in, n_out, width=64):
    return nn.Sequential(
        nn.Linear(n_in, width), nn.LeakyReLU(0.2),
        nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, n_out))


class Gan:
    def __init__(self, latent=8):
        self.latent = latent
        self.generator = net(latent, 2)
        self.judge = net(2, 1)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.judge.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def sample(self, n):
        return self.generator(torch.randn(n, self.latent))

    def judge_step(self, real):
        fake = self.sample(len(real)).detach()
        s_real, s_fake = self.judge(real), self.judge(fake)
        loss = (F.binary_cross_entropy_with_logits(s_real, torch.full_like(s_real, 0.9))
                + F.binary_cross_entropy_with_logits(s_fake, torch.zeros_like(s_fake)))
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self, n):
        self.judge.requires_grad_(False)
        s_fake = self.judge(self.sample(n))
        loss = F.binary_cross_entropy_with_logits(s_fake, torch.zeros_like(s_fake))
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.judge.requires_grad_(True)
        return loss.item()


def sliced_distance(a, b, directions=64):
    gen = torch.Generator().manual_seed(0)
    d = F.normalize(torch.randn(2, directions, generator=gen), dim=0)
    return ((a @ d).sort(0).values - (b @ d).sort(0).values).abs().mean()


gan = Gan()
reference = turbine(2000, torch.Generator().manual_seed(5))
for step in range(400):
    d_loss = gan.judge_step(turbine(128))
    g_loss = gan.generator_step(128)
    if step % 100 == 0:
        with torch.no_grad():
            gap = sliced_distance(gan.sample(2000), reference).item()
        print(f"step {step} judge {d_loss:.3f} generator {g_loss:.3f} distance {gap:.3f}")

with torch.no_grad():
    print("RESULT", sliced_distance(gan.sample(2000), reference).item())
