"""Train a generator of calorimeter shower summaries against a hinge critic."""
import torch
torch.set_num_threads(1)
torch.manual_seed(301)
import copy
from torch import nn
import torch.nn.functional as F


def showers(n, gen=None):
    energy = torch.rand(n, generator=gen)
    depth = 0.6 * energy + 0.1 * torch.randn(n, generator=gen)
    width = 0.5 - 0.3 * energy + 0.05 * torch.randn(n, generator=gen) * (1 + 2 * energy)
    return torch.stack([4 * energy - 2, 4 * depth - 1.2, 6 * width - 2], 1)


def generator(latent=6):
    return nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 3))


def critic():
    layers = [nn.Linear(3, 64), nn.Linear(64, 64), nn.Linear(64, 1)]
    sn = [nn.utils.parametrizations.spectral_norm(layer) for layer in layers]
    return nn.Sequential(sn[0], nn.LeakyReLU(0.2), sn[1], nn.LeakyReLU(0.2), sn[2])


def sliced_distance(a, b, directions=64):
    d = torch.randn(3, directions, generator=torch.Generator().manual_seed(0))
    d = F.normalize(d, dim=0)
    return ((a @ d).sort(0).values - (b @ d).sort(0).values).abs().mean().item()


class Rivals:
    def __init__(self):
        self.gen, self.critic = generator(), critic()
        self.smooth = copy.deepcopy(self.gen).requires_grad_(False)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=3e-3, betas=(0.0, 0.9))

    def draw(self, n, net=None):
        return (net or self.gen)(torch.randn(n, 6))

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.draw(len(real))
        loss = F.relu(1 - self.critic(real)).mean() + F.relu(1 + self.critic(fake)).mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        return loss.item()

    def generator_step(self, n):
        loss = -self.critic(self.draw(n)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        with torch.no_grad():
            for s, p in zip(self.smooth.parameters(), self.gen.parameters()):
                s.lerp_(p, 0.03)
        return loss.item()


rivals = Rivals()
reference = showers(2000, torch.Generator().manual_seed(4))
for step in range(300):
    c_loss = rivals.critic_step(showers(128))
    c_loss = rivals.critic_step(showers(128))
    g_loss = rivals.generator_step(128)
    if step % 75 == 0:
        with torch.no_grad():
            gap = sliced_distance(rivals.draw(2000, rivals.smooth), reference)
        print(f"step {step} critic {c_loss:.3f} generator {g_loss:.3f} distance {gap:.3f}")

with torch.no_grad():
    print("RESULT", sliced_distance(rivals.draw(2000, rivals.smooth), reference))
