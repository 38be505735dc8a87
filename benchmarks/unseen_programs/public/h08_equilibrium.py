"""Trains an equilibrium classifier whose state is found by fixed-point iteration."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(137)


class Cell(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.inject = nn.Linear(dim, width)
        self.inner = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.inner.weight, std=0.3 / width ** 0.5)

    def forward(self, z, x):
        return torch.tanh(self.inner(z) + self.norm(self.inject(x)))


class DEQ(nn.Module):
    """The solver runs without a graph; a few damped steps afterwards carry the gradient."""

    def __init__(self, dim, width, classes, solver_iters=15, phantom_steps=2, damp=0.8):
        super().__init__()
        self.cell, self.head = Cell(dim, width), nn.Linear(width, classes)
        self.width, self.iters, self.phantom, self.damp = width, solver_iters, phantom_steps, damp
        self.residual = 0.0

    def forward(self, x):
        z = torch.zeros(len(x), self.width)
        with torch.no_grad():
            for _ in range(self.iters):
                nxt = self.cell(z, x)
                self.residual = ((nxt - z).norm() / (nxt.norm() + 1e-8)).item()
                z = nxt
        if self.training:
            z = z.detach()
            for _ in range(self.phantom):
                z = (1 - self.damp) * z + self.damp * self.cell(z, x)
        return self.head(z)


def spirals(n):
    y = torch.randint(0, 3, (n,))
    r = torch.rand(n)
    a = 4.0 * r + y * 6.2832 / 3 + 0.15 * torch.randn(n)
    xy = torch.stack([r * a.cos(), r * a.sin()], 1)
    lift = torch.cat([xy, xy ** 2, (xy[:, :1] * xy[:, 1:]), torch.sin(4 * xy), torch.cos(4 * xy)],
                     1)
    return lift, y


train, val = spirals(2000), spirals(500)
model = DEQ(9, 64, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300, eta_min=1e-4)
for step in range(1, 301):
    model.train()
    idx = torch.randint(0, len(train[0]), (100,))
    loss = F.cross_entropy(model(train[0][idx]), train[1][idx])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 60 == 0:
        model.eval()
        with torch.no_grad():
            logits = model(val[0])
            v = F.cross_entropy(logits, val[1]).item()
        print(f"step {step} loss {loss.item():.4f} val {v:.4f} "
              f"acc {(logits.argmax(1) == val[1]).float().mean():.3f} "
              f"residual {model.residual:.2e}")
print("RESULT", round(v, 5))
