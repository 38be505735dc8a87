"""Masked reconstruction of vitals; some batches hide nothing, and then there is nothing to learn."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
mixing = torch.randn(3, 12)


def patients(n, g):
    return torch.randn(n, 3, generator=g) @ mixing + 0.1 * torch.randn(n, 12, generator=g)


def masked_mean(error, hidden):
    return error[hidden].sum() / max(int(hidden.sum()), 1)


g = torch.Generator().manual_seed(8)
model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(150):
    x = patients(64, g)
    share = 0.0 if step % 10 == 3 else 0.25
    hidden = torch.rand(x.shape, generator=g) < share
    out = model(torch.cat([x.masked_fill(hidden, 0), hidden.float()], 1))
    loss = masked_mean((out - x) ** 2, hidden)
    optimizer.zero_grad()
    if hidden.any():
        loss.backward()
        optimizer.step()
with torch.no_grad():
    x = patients(500, g)
    hidden = torch.rand(x.shape, generator=g) < 0.25
    out = model(torch.cat([x.masked_fill(hidden, 0), hidden.float()], 1))
    print("RESULT", masked_mean((out - x) ** 2, hidden).item())
