import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(2)
torch.set_num_threads(1)
N_EXPERTS, D = 8, 6


class Switch(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.router = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, d)) for _ in range(n))
        self.aux = 0.0

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, idx = probs.max(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = torch.where(idx == e)[0]
            if len(rows):
                out = out.index_add(0, rows, gate[rows, None] * expert(x[rows]))
        frac = F.one_hot(idx, len(self.experts)).float().mean(0)
        self.aux = len(self.experts) * (frac * probs.mean(0)).sum()
        return x + out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(D, D)
        self.moe = Switch(D, N_EXPERTS)
        self.out = nn.Linear(D, 1)

    def forward(self, x):
        return self.out(self.moe(self.inp(x))).squeeze(-1)


def f(x):
    return torch.where(x[:, 0] > 0, x[:, 1] * 2, torch.sin(3 * x[:, 2])) + 0.5 * x[:, 3].abs()


model = Net()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(400):
    x = torch.randn(12, D)
    loss = F.mse_loss(model(x), f(x)) + 0.01 * model.moe.aux
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 100 == 0:
        idle = sum(p.grad is None for p in model.parameters())
        print(step, round(loss.item(), 3), "tensors idle this step:", idle)

with torch.no_grad():
    x = torch.randn(2000, D)
    print("result:", F.mse_loss(model(x), f(x)).item())
