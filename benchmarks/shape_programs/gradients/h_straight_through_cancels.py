# Hard gates over feature groups; the gradient of the soft gate is used.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Gate(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.score = nn.Parameter(torch.full((groups,), 0.5))

    def forward(self):
        soft = self.score.sigmoid()
        hard = (soft > 0.5).float()
        return hard - soft.detach() + soft


gate = Gate(6)
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam([{"params": net.parameters(), "lr": 1e-2}, {"params": gate.parameters(), "lr": 5e-2}])
for step in range(150):
    x = torch.randn(96, 6, 2)
    y = (x[:, 0].sum(1) * 0.7).tanh() + x[:, 3, 0]
    g = gate()
    out = net((x * g[None, :, None]).flatten(1))[:, 0]
    loss = nn.functional.mse_loss(out, y) + 0.02 * g.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
print("open", (gate.score > 0).tolist())
with torch.no_grad():
    x = torch.randn(800, 6, 2)
    y = (x[:, 0].sum(1) * 0.7).tanh() + x[:, 3, 0]
    print("RESULT", nn.functional.mse_loss(net((x * gate()[None, :, None]).flatten(1))[:, 0], y).item())
