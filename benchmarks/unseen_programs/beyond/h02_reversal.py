"""Adapts a classifier to an unlabelled second domain with a gradient reversal layer."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

DIM = 20
mix = torch.linalg.qr(torch.randn(DIM, DIM))[0]


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.strength * grad_output, None


def domain(n, seed, second):
    """Three features tell the class; in the first domain, some nuisance tells it as well."""
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (n,), generator=gen)
    sign = (2.0 * label - 1.0).unsqueeze(1)
    core = 0.9 * sign + torch.randn(n, 3, generator=gen)
    other = torch.randn(n, DIM - 3, generator=gen)
    if second:
        other[:, :3] += 2.0
    else:
        other[:, :3] += 0.4 * sign
    return torch.cat([core, other], dim=1) @ mix, label


class Adapted(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(DIM, width), nn.ReLU(),
                                      nn.Linear(width, width), nn.ReLU())
        self.label = nn.Linear(width, 2)
        self.domain = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x, strength=0.0):
        h = self.features(x)
        return self.label(h), self.domain(Reverse.apply(h, strength))


source_x, source_y = domain(4000, 1, second=False)
target_x, _ = domain(4000, 2, second=True)
test_x, test_y = domain(1500, 3, second=True)
model = Adapted()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
steps = 300
for step in range(steps):
    strength = 0.3 * (2 / (1 + math.exp(-10 * step / steps)) - 1)
    i, j = torch.randint(0, 4000, (128,)), torch.randint(0, 4000, (128,))
    logits, source_domain = model(source_x[i], strength)
    _, target_domain = model(target_x[j], strength)
    guess = torch.cat([source_domain, target_domain])
    which = torch.arange(2).repeat_interleave(128)
    label_loss = F.cross_entropy(logits, source_y[i])
    domain_loss = F.cross_entropy(guess, which)
    optimizer.zero_grad()
    (label_loss + domain_loss).backward()
    optimizer.step()
    if step % 75 == 74:
        with torch.no_grad():
            wrong = (model(test_x)[0].argmax(1) != test_y).float().mean().item()
        print(f"step {step + 1} label {label_loss.item():.3f} domain {domain_loss.item():.3f} "
              f"target error {wrong:.3f}")
print("RESULT", round(wrong, 4))
