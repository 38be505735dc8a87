"""Pump pressure from flow sensors: broken records are expected and their batch is left out cleanly."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(10)


def pumps(n, broken):
    x = torch.randn(n, 8)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.3 * x[:, 3]
    y = y + 0.05 * torch.randn(n)
    y[torch.rand(n) < broken] = float("nan")
    return TensorDataset(x, y)


train = DataLoader(pumps(4000, 0.002), batch_size=50, shuffle=True, drop_last=True)
net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
trainable = [p for p in net.parameters() if p.requires_grad]
opt = torch.optim.AdamW([
    {"params": net[:3].parameters(), "lr": 5e-3},
    {"params": net[3:].parameters(), "lr": 1e-2},
])
base = [g["lr"] for g in opt.param_groups]
total = 5 * len(train)
step = left_out = 0
for epoch in range(5):
    for x, y in train:
        factor = min(1.0, (step + 1) / 40) * (1 - step / total) + 0.02
        for group, lr in zip(opt.param_groups, base):
            group["lr"] = lr * factor
        step += 1
        opt.zero_grad(set_to_none=True)
        loss = (net(x).squeeze(1) - y).pow(2).mean()
        if not torch.isfinite(loss):
            left_out += 1
            continue
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 5.0)
        opt.step()
        last = loss.item()
    print(f"epoch {epoch} mse {last:.4f} left out {left_out}")

x, y = pumps(1000, 0.0).tensors
with torch.no_grad():
    print("RESULT", (net(x).squeeze(1) - y).pow(2).mean().item())
