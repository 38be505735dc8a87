import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torchvision.ops import StochasticDepth

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.f = nn.Sequential(nn.BatchNorm1d(d, track_running_stats=False), nn.Linear(d, 2 * d), nn.ReLU(),
                               nn.Dropout(0.1), nn.Linear(2 * d, d))
        self.sd = StochasticDepth(p, mode="batch")

    def forward(self, x):
        return x + self.sd(self.f(x))


class Net(nn.Module):
    def __init__(self, d=32, depth=5):
        super().__init__()
        self.inp = nn.Linear(12, d)
        self.blocks = nn.ModuleList(Block(d, 0.3 * i / (depth - 1)) for i in range(depth))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False) if self.training else b(x)
        return self.out(x).squeeze(-1)


def f(x):
    return torch.sin(x[:, 0] * 2) + x[:, 1].abs() - x[:, 2] * x[:, 3]


tx, vx = torch.randn(1500, 12), torch.randn(1500, 12)
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
for epoch in range(8):
    model.train()
    for idx in torch.randperm(1500).split(50):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(tx[idx])
        loss = F.mse_loss(pred.float(), f(tx[idx]))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        v = F.mse_loss(model(vx), f(vx)).item()
    print(epoch, loss.item(), v)
print("result:", v)
