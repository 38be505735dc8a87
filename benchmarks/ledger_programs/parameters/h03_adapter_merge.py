import copy
import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class LoRA(nn.Linear):
    def __init__(self, inf, outf, r=4, alpha=8):
        super().__init__(inf, outf)
        self.A = nn.Parameter(torch.empty(r, inf))
        self.B = nn.Parameter(torch.zeros(outf, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale = alpha / r
        self.merged = False

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        return y if self.merged else y + self.scale * (x @ self.A.t() @ self.B.t())

    def merge(self):
        with torch.no_grad():
            self.weight += self.scale * self.B @ self.A
        self.merged = True

    def unmerge(self):
        with torch.no_grad():
            self.weight -= self.scale * self.B @ self.A
        self.merged = False


class Net(nn.Module):
    def __init__(self, cls):
        super().__init__()
        self.fc1, self.fc2, self.out = cls(10, 48), cls(48, 48), nn.Linear(48, 1)

    def forward(self, x):
        return self.out(F.silu(self.fc2(F.silu(self.fc1(x))))).squeeze(-1)


def data(n, w):
    x = torch.randn(n, 10)
    return x, torch.tanh(x @ w)


wa = torch.randn(10)
wb = wa + 0.7 * torch.randn(10)
base = Net(nn.Linear)
opt = torch.optim.Adam(base.parameters(), lr=5e-3)
for _ in range(200):
    x, y = data(64, wa)
    opt.zero_grad()
    F.mse_loss(base(x), y).backward()
    opt.step()

model = Net(LoRA)
missing, unexpected = model.load_state_dict(base.state_dict(), strict=False)
print("missing:", missing)
for n, p in model.named_parameters():
    p.requires_grad_(n.endswith((".A", ".B")))
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
vx, vy = data(1000, wb)


def evaluate():
    layers = [m for m in model.modules() if isinstance(m, LoRA)]
    for m in layers:
        m.merge()
    with torch.no_grad():
        v = F.mse_loss(model(vx), vy).item()
    for m in layers:
        m.unmerge()
    return v


for step in range(400):
    x, y = data(64, wb)
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, evaluate())
print("result:", evaluate())
