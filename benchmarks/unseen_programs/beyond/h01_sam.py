"""Trains a classifier of noisy labels with sharpness-aware minimisation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1)


def samples(n, seed, noise):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=gen)
    label = ((x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] + 0.5 * x[:, 3] > 0).long())
    wrong = torch.rand(n, generator=gen) < noise
    random = torch.randint(0, 4, (n,), generator=gen)
    return x, torch.where(wrong, random, label)


class SAM:
    """Climbs to the worst weights nearby, takes their gradient, and steps from where it was."""

    def __init__(self, base, rho=0.05):
        self.base, self.rho = base, rho
        self.offsets = {}

    def parameters(self):
        return [p for group in self.base.param_groups for p in group["params"]]

    @torch.no_grad()
    def climb(self):
        params = [p for p in self.parameters() if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in params]).norm() + 1e-12
        for p in params:
            self.offsets[p] = p.grad * (self.rho / norm)
            p.add_(self.offsets[p])
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, offset in self.offsets.items():
            p.sub_(offset)
        self.offsets.clear()
        self.base.step()
        self.base.zero_grad()


train_x, train_y = samples(2400, 1, noise=0.1)
val_x, val_y = samples(1000, 2, noise=0.0)
model = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(),
                      nn.Linear(96, 4))
base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
optimizer = SAM(base, rho=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, 12)
for epoch in range(12):
    for chunk in torch.randperm(len(train_x)).split(100):
        x, y = train_x[chunk], train_y[chunk]
        first = F.cross_entropy(model(x), y)
        first.backward()
        optimizer.climb()
        second = F.cross_entropy(model(x), y)
        second.backward()
        optimizer.descend()
    schedule.step()
    if epoch % 3 == 2:
        print(f"epoch {epoch} loss {first.item():.4f} nearby {second.item():.4f}")
with torch.no_grad():
    print("RESULT", round((model(val_x).argmax(1) != val_y).float().mean().item(), 4))
