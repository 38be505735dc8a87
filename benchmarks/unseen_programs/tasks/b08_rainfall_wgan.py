"""Trains a Wasserstein generator of joint rainfall and wind anomalies."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(41)

NOISE, LIMIT, CRITIC_STEPS = 8, 0.1, 5


def observed(n, gen):
    season = torch.randint(0, 3, (n,), generator=gen)
    centre = torch.tensor([[-1.5, 0.5], [1.2, 1.5], [0.6, -1.6]])[season]
    mix = torch.tensor([[0.35, 0.2], [0.0, 0.25]])
    return centre + torch.randn(n, 2, generator=gen) @ mix


def mlp(sizes, act):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def critic_round(critic, generator, opt, gen):
    real = observed(128, gen)
    with torch.no_grad():
        fake = generator(torch.randn(128, NOISE, generator=gen))
    loss = critic(fake).mean() - critic(real).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for p in critic.parameters():
        p.data.clamp(-LIMIT, LIMIT)
    return -loss.item()


def generator_round(critic, generator, opt, gen):
    loss = -critic(generator(torch.randn(128, NOISE, generator=gen))).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


def energy_distance(a, b):
    cross = torch.cdist(a, b).mean()
    return (2 * cross - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


@torch.no_grad()
def assess(generator):
    gen = torch.Generator().manual_seed(1234)
    fake = generator(torch.randn(1000, NOISE, generator=gen))
    return energy_distance(fake, observed(1000, gen))


generator = mlp([NOISE, 64, 64, 2], nn.ReLU)
critic = mlp([2, 64, 64, 1], nn.LeakyReLU)
opt_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

gen = torch.Generator().manual_seed(90)
history = []
for step in range(400):
    for _ in range(CRITIC_STEPS):
        gap = critic_round(critic, generator, opt_c, gen)
    generator_round(critic, generator, opt_g, gen)
    if step % 50 == 49:
        history.append(assess(generator))
        print(f"step {step + 1} gap {gap:.4f} energy distance {history[-1]:.4f}")

print("RESULT", sum(history[-3:]) / 3)
