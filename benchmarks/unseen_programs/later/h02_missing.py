import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(2)
w = torch.randn(12, 5)


def lab_results(n):
    x = torch.randn(n, 12)
    y = torch.tanh(x @ w * 0.5) + 0.1 * torch.randn(n, 5)
    full = y.clone()
    y[torch.rand(n, 5) < 0.4] = float("nan")
    return x, y, full


def masked_mse(pred, target):
    known = ~torch.isnan(target)
    diff = torch.where(known, pred - torch.nan_to_num(target), torch.zeros_like(pred))
    return diff.square().sum() / known.sum().clamp(min=1)


x, y, _ = lab_results(3000)
xv, _, yv = lab_results(800)
net = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 5))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
for epoch in range(15):
    for idx in torch.randperm(3000).split(60):
        loss = masked_mse(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, f"{loss.item():.4f}")
with torch.no_grad():
    print("RESULT", masked_mse(net(xv), yv).item())
