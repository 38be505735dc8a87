# Optimizer in the backward pass: every weight is updated as soon as its gradient is ready.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
opts = {p: torch.optim.Adam([p], lr=4e-3) for p in net.parameters()}


def update(p):
    opts[p].step()
    opts[p].zero_grad()


for p in net.parameters():
    p.register_post_accumulate_grad_hook(update)
for step in range(120):
    x = torch.randn(64, 8)
    y = torch.sin(x[:, :1]) + x[:, 1:2].abs()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
x = torch.randn(500, 8)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x), torch.sin(x[:, :1]) + x[:, 1:2].abs()).item())
