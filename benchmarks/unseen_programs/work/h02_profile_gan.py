"""GAN of daily consumption profiles: fp16 generator with a scaler, float32 critic without one."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(42)

POINTS, NOISE = 12, 6


def profiles(n, gen):
    t = torch.arange(POINTS).float() / POINTS
    peak = 0.3 + 0.1 * torch.randn(n, 1, generator=gen)
    size = 1 + 0.3 * torch.randn(n, 1, generator=gen)
    x = size * torch.exp(-0.5 * ((t - peak) / 0.12) ** 2)
    x = x + 0.6 * torch.exp(-0.5 * ((t - 0.75) / 0.08) ** 2)
    return x + 0.05 * torch.randn(n, POINTS, generator=gen)


def mlp(n_in, n_out, width=48):
    return nn.Sequential(
        nn.Linear(n_in, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, n_out),
    )


class ProfileGAN:
    def __init__(self):
        self.gen_net, self.critic = mlp(NOISE, POINTS), mlp(POINTS, 1)
        self.gen_opt = torch.optim.Adam(self.gen_net.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def generate(self, n):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = self.gen_net(torch.randn(n, NOISE))
        return fake.float()

    def critic_step(self, real):
        """The critic runs in float32, so its losses go backward unscaled."""
        fake = self.generate(len(real)).detach()
        real = real.clone().requires_grad_()
        score = self.critic(real)
        loss = F.softplus(-score).mean() + F.softplus(self.critic(fake)).mean()
        slope = torch.autograd.grad(score.sum(), real, create_graph=True)[0]
        penalty = 0.1 * slope.square().sum(1).mean()
        self.critic_opt.zero_grad()
        loss.backward(retain_graph=True)
        penalty.backward()
        self.critic_opt.step()
        return loss.item()

    def generator_step(self, n):
        loss = F.softplus(-self.critic(self.generate(n))).mean()
        self.gen_opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.gen_opt)
        self.scaler.update()
        return loss.item()


@torch.no_grad()
def distance(gan, real):
    """Sliced Wasserstein distance between generated and real profiles."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(len(real), NOISE, generator=rng)
    directions = F.normalize(torch.randn(POINTS, 64, generator=rng), dim=0)
    a = (gan.gen_net(z) @ directions).sort(0).values
    b = (real @ directions).sort(0).values
    return (a - b).abs().mean().item()


gen = torch.Generator().manual_seed(420)
train, val = profiles(3000, gen), profiles(500, gen)
gan = ProfileGAN()
print(f"distance before {distance(gan, val):.4f}")
for step in range(400):
    c_loss = gan.critic_step(train[torch.randint(0, 3000, (64,), generator=gen)])
    g_loss = gan.generator_step(64)
    if step % 80 == 0:
        d = distance(gan, val)
        print(f"step {step} critic {c_loss:.3f} generator {g_loss:.3f} distance {d:.4f}")
print(f"RESULT {distance(gan, val):.5f}")
