import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
torch.set_num_threads(1)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(48, 1) for _ in range(3)])

    def forward(self, x):
        h = self.trunk(x)
        return [head(h) for head in self.heads]


def sample(n):
    x = torch.randn(n, 10)
    return x, [x[:, :1] * x[:, 1:2], -x[:, :1].sin(), x[:, 2:3].abs() - x[:, 3:4]]


model = Shared()
trunk_params = list(model.trunk.parameters())
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)


def flat():
    return torch.cat([p.grad.flatten() for p in trunk_params])


def write(vec):
    k = 0
    for p in trunk_params:
        p.grad.copy_(vec[k:k + p.numel()].view_as(p))
        k += p.numel()


for step in range(350):
    x, ys = sample(64)
    losses = [F.mse_loss(p, y) for p, y in zip(model(x), ys)]
    optimizer.zero_grad()
    per_task = []
    for loss in losses:
        for p in trunk_params:
            p.grad = None
        loss.backward(retain_graph=True)
        per_task.append(flat())
    merged = torch.zeros_like(per_task[0])
    for i, g in enumerate(per_task):
        g = g.clone()
        for j in torch.randperm(3).tolist():
            if j != i:
                d = g @ per_task[j]
                if d < 0:
                    g -= d / (per_task[j] @ per_task[j] + 1e-12) * per_task[j]
        merged += g
    write(merged)
    optimizer.step()
    if step % 100 == 0:
        print(step, [round(l.item(), 3) for l in losses])

x, ys = sample(1000)
with torch.no_grad():
    print(f"result: {sum(F.mse_loss(p, y) for p, y in zip(model(x), ys)).item():.4f}")
