"""Mixture of experts with top-1 routing: in many steps some experts have no gradient at all (None), the last
accumulation window of an epoch is shorter and is divided by its own length."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)
ACCUM = 4


class MoE(nn.Module):
    def __init__(self, d_in=6, n_experts=6):
        super().__init__()
        self.router = nn.Linear(d_in, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d_in, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(n_experts))

    def forward(self, x):
        p = self.router(x).softmax(-1)
        w, k = p.max(-1)
        out = x.new_zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            sel = (k == i).nonzero().squeeze(-1)
            if len(sel):
                out = out.index_add(0, sel, w[sel, None] * expert(x[sel]))
        load = F.one_hot(k, len(self.experts)).float().mean(0)
        return out, len(self.experts) * (load * p.mean(0)).sum()


def target(x):
    side = (x[:, :1] > 0).float()
    return side * torch.sin(2 * x[:, 1:2]) + (1 - side) * x[:, 2:3] * x[:, 3:4]


x = torch.randn(1080, 6)
y = target(x)
vx = torch.randn(2000, 6)
model = MoE()
opt = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=1e-3)
for epoch in range(22):
    chunks = torch.randperm(len(x)).split(12)
    for start in range(0, len(chunks), ACCUM):
        window = chunks[start:start + ACCUM]
        for idx in window:
            pred, balance = model(x[idx])
            loss = F.mse_loss(pred, y[idx]) + 0.01 * balance
            (loss / len(window)).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
    if epoch % 7 == 0:
        print(epoch, len(window), loss.item())

model.eval()
with torch.no_grad():
    print("RESULT", F.mse_loss(model(vx)[0], target(vx)).item())
