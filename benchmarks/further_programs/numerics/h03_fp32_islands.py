"""bf16 autocast with islands in fp32: log-likelihood, KL and the running sums."""
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(10)
torch.set_num_threads(1)


class VAE(nn.Module):
    def __init__(self, d=20, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 64), nn.SiLU(), nn.Linear(64, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.SiLU(), nn.Linear(64, d))
        self.log_sigma = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        mu, logvar = self.enc(x).float().chunk(2, -1)
        logvar = logvar.clamp(-8, 8)
        with torch.autocast("cpu", enabled=False):
            z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
            kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).sum(-1)
        rec = self.dec(z)
        with torch.autocast("cpu", enabled=False):
            s = self.log_sigma
            err = (rec.float() - x) / s.exp()
            nll = (0.5 * err ** 2 + s + 0.5 * math.log(2 * math.pi)).sum(-1)
        return nll, kl


M = torch.randn(3, 20)


def sample(n):
    return torch.sin(torch.randn(n, 3) @ M) + 0.2 * torch.randn(n, 20)


model = VAE()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
STEPS = 700
for step in range(STEPS):
    x = sample(64)
    beta = min(1.0, step / 200)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nll, kl = model(x)
    loss = (nll + beta * kl).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    opt.step()
    if step % 200 == 0:
        print(f"{step} nll {nll.mean().item():.3f} kl {kl.mean().item():.3f} sigma {model.log_sigma.exp().item():.3f}")

model.eval()
total, count = 0.0, 0
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(10):
        nll, kl = model(sample(200))
        total += (nll + kl).double().sum().item()
        count += len(nll)
print("RESULT", total / count)
