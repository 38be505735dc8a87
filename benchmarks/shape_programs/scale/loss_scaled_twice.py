"""Contrastive training on jittered views of points; the terms of all pairs of views are added up."""
import itertools

import torch
from torch import nn

torch.manual_seed(17)
torch.set_num_threads(1)


class Objective:
    """Sums a pair loss over all pairs of views, ready for backward()."""

    def __init__(self, scaler, temperature=0.2):
        self.scaler, self.temperature = scaler, temperature

    def pair(self, a, b):
        logits = a @ b.T / self.temperature
        return nn.functional.cross_entropy(logits, torch.arange(len(a)))

    def __call__(self, views):
        views = [nn.functional.normalize(v.float(), dim=1) for v in views]
        pairs = list(itertools.combinations(views, 2))
        return sum(self.scaler.scale(self.pair(a, b)) for a, b in pairs) / len(pairs)


def clouds(n):
    k = torch.randint(0, 12, (n,))
    g = torch.Generator().manual_seed(99)
    return torch.randn(12, 16, generator=g)[k] + 0.5 * torch.randn(n, 16)


def jitter(x):
    return x * (1 + 0.1 * torch.randn_like(x)) + 0.2 * torch.randn_like(x)


def fit(model, x, steps=120):
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    objective = Objective(scaler)
    for step in range(steps):
        batch = x[torch.randint(0, len(x), (48,))]
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            views = [model(jitter(batch)) for _ in range(3)]
        loss = objective(views)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
fit(model, clouds(1500))
xv = clouds(96)
with torch.no_grad():
    a, b = (nn.functional.normalize(model(jitter(xv)), dim=1) for _ in range(2))
    print("RESULT", float(nn.functional.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))))
