"""Density of two moons with a mixture network; the rate reacts to the held-out log-likelihood."""
import functools
import math
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


def moons(n, gen):
    a = torch.rand(n, generator=gen) * math.pi
    up = torch.rand(n, generator=gen) < 0.5
    x = torch.where(up, torch.cos(a), 1 - torch.cos(a))
    y = torch.where(up, torch.sin(a), 0.5 - torch.sin(a))
    return x[:, None], (y + 0.08 * torch.randn(n, generator=gen))[:, None]


class MDN(nn.Module):
    def __init__(self, k=5, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi, self.mu, self.ls = (nn.Linear(width, k) for _ in range(3))

    def log_prob(self, x, y):
        h = self.body(x)
        comp = torch.distributions.Normal(self.mu(h), self.ls(h).clamp(-4, 2).exp())
        return torch.logsumexp(self.pi(h).log_softmax(-1) + comp.log_prob(y), -1)


make_scheduler = functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.3, patience=1)

gen = torch.Generator().manual_seed(1)
held = moons(400, gen)
model = MDN()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
control = make_scheduler(opt)
evidence = []
for rnd in range(15):
    for _ in range(10):
        x, y = moons(128, gen)
        nll = -model.log_prob(x, y).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
    with torch.no_grad():
        evidence.append(model.log_prob(*held).mean().item())
    control.step(evidence[-1])
    print(rnd, round(evidence[-1], 4))

print("RESULT", -evidence[-1])
