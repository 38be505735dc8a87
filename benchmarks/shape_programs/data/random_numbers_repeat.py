import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(60)

CONFIG = {"seed": 60, "levels": 50, "batch": 32, "steps": 150}
KEEP = torch.cumprod(1 - torch.linspace(1e-3, 0.15, CONFIG["levels"]), 0)


def spiral(n):
    turn = torch.rand(n) * 9 + 2
    return torch.stack([turn.cos(), turn.sin()], 1) * turn[:, None] / 7


def noise_for(shape, config):
    rng = np.random.default_rng(config["seed"])
    level = torch.from_numpy(rng.integers(0, config["levels"], shape[0]))
    noise = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    return level, noise


def corrupt(clean, level, noise):
    keep = KEEP[level][:, None]
    return keep.sqrt() * clean + (1 - keep).sqrt() * noise


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Embedding(CONFIG["levels"], 16)
        self.body = nn.Sequential(nn.Linear(18, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x, level):
        return self.body(torch.cat([x, self.level(level)], 1))


data = spiral(1024)
net = Denoiser()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(CONFIG["steps"]):
    clean = data[torch.randint(len(data), (CONFIG["batch"],))]
    level, noise = noise_for(clean.shape, CONFIG)
    loss = (net(corrupt(clean, level, noise), level) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}")

net.eval()
clean = spiral(2000)
level, noise = torch.randint(CONFIG["levels"], (2000,)), torch.randn(2000, 2)
with torch.no_grad():
    print("RESULT", (net(corrupt(clean, level, noise), level) - noise).square().mean().item())
