import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(7)
torch.set_num_threads(1)


class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        nn.init.zeros_(self.f[-1].weight)
        nn.init.zeros_(self.f[-1].bias)

    def forward(self, x):
        return x + self.f(x)


class DeepNet(nn.Module):
    def __init__(self, d=24, depth=6, layerdrop=0.3):
        super().__init__()
        self.inp = nn.Linear(5, d)
        self.blocks = nn.ModuleList([ResBlock(d) for _ in range(depth)])
        self.out = nn.Linear(d, 1)
        self.layerdrop = layerdrop

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            if self.training and torch.rand(()).item() < self.layerdrop:
                continue
            x = block(x)
        return self.out(x).squeeze(-1)


def target(x):
    return torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]


model = DeepNet()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=400)
for i in range(400):
    x = torch.randn(64, 5)
    loss = F.mse_loss(model(x), target(x))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    if i % 100 == 0:
        print(i, loss.item())
model.eval()
with torch.no_grad():
    x = torch.randn(2000, 5)
    print("result:", F.mse_loss(model(x), target(x)).item())
