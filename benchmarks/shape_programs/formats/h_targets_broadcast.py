"""Five quantiles at once against one observation each, by several heads that share the observations."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])


def rides(n):
    x = torch.randn(n, 4)
    return x, x[:, 0] + x[:, 1] ** 2 + (0.3 + 0.3 * x[:, 2].abs()) * torch.randn(n)


def pinball(out, y):
    error = y.view(1, -1, 1) - out
    return torch.maximum(levels * error, (levels - 1) * error).mean()


heads = nn.ModuleList(nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 5)) for _ in range(3))
optimizer = torch.optim.Adam(heads.parameters(), lr=1e-2)
for step in range(120):
    x, y = rides(128)
    loss = pinball(torch.stack([h(x) for h in heads]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
x, y = rides(2000)
with torch.no_grad():
    print("RESULT", pinball(torch.stack([h(x) for h in heads]).mean(0, keepdim=True), y).item())
