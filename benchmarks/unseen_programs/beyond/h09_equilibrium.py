"""Trains an equilibrium layer whose fixed point is found without a graph."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)


def spirals(n, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (n,), generator=gen)
    radius = 0.2 + 0.8 * torch.rand(n, generator=gen)
    angle = 3.5 * radius + label * 2.094 + 0.15 * torch.randn(n, generator=gen)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) * 3, label


class Equilibrium(nn.Module):
    """Iterates z = tanh(W z + U x) to its fixed point; the backward pass sees one iteration."""

    def __init__(self, inputs, width, limit=30, tolerance=1e-3):
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.outer = nn.Linear(inputs, width)
        self.limit, self.tolerance = limit, tolerance
        nn.init.orthogonal_(self.inner.weight, gain=0.5)

    def forward(self, x):
        drive = self.outer(x)
        with torch.no_grad():
            z = torch.zeros_like(drive)
            for _ in range(self.limit):
                after = torch.tanh(self.inner(z) + drive)
                change = (after - z).norm() / (after.norm() + 1e-6)
                z = after
                if change < self.tolerance:
                    break
        return torch.tanh(self.inner(z) + drive)


model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), Equilibrium(32, 48), nn.Linear(48, 3))
train_x, train_y = spirals(3000, 1)
val_x, val_y = spirals(1000, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(10):
    for chunk in torch.randperm(len(train_x)).split(100):
        loss = F.cross_entropy(model(train_x[chunk]), train_y[chunk])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        with torch.no_grad():
            weight = model[2].inner.weight
            norm = torch.linalg.matrix_norm(weight, 2)
            weight.mul_((0.9 / norm).clamp(max=1.0))
    with torch.no_grad():
        val = F.cross_entropy(model(val_x), val_y).item()
    print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f} norm {norm.item():.3f}")
print("RESULT", round(val, 4))
