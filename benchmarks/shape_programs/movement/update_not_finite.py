"""Residual network with zero-started branches, trained with layer-wise adaptive rates."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(36)
x = torch.randn(900, 16)
y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] + x[:, 3] > 1).long()


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inside = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())
        self.outside = nn.Linear(width, width)
        nn.init.zeros_(self.outside.weight)

    def forward(self, h):
        return h + self.outside(self.inside(h))


class LayerwiseSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, trust=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, trust=trust))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim > 1:
                    size, slope = p.norm(), p.grad.norm()
                    ratio = group["trust"] * torch.where(size > 0, size / slope, 1.0)
                else:
                    ratio = 1.0
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                v.mul_(group["momentum"]).add_(p.grad * ratio)
                p.add_(v, alpha=-group["lr"])


net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), Branch(48), Branch(48), nn.Linear(48, 3))
opt = LayerwiseSGD(net.parameters(), lr=0.1)
for step in range(120):
    rows = torch.randint(0, 700, (64,))
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    net.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x[700:]), y[700:]).item())
