import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_num_threads(1)

N_STAGE1, N_STAGE2, LR = 150, 300, 5e-3
W1, W2 = torch.randn(8, 8), torch.randn(8)


def sample(n, shift=0.0):
    x = torch.randn(n, 8)
    return x, torch.sin(x @ W1 * 0.6 + shift) @ W2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def cosine(opt, t):
    for g in opt.param_groups:
        g["lr"] = g["base_lr"] * 0.5 * (1 + math.cos(math.pi * t))


def train(model, opt, steps, shift):
    for i in range(steps):
        cosine(opt, i / steps)
        x, y = sample(64, shift)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    cosine(opt, 1.0)
    print("stage done, train loss", round(loss.item(), 4))


# source task
model = Model()
opt = torch.optim.Adam([{"params": model.parameters(), "base_lr": LR}], lr=LR)
train(model, opt, 150, shift=0.0)

# target task: head first, then everything
model.head = nn.Linear(64, 1)
for p in model.body.parameters():
    p.requires_grad = False
opt = torch.optim.Adam([{"params": model.head.parameters(), "base_lr": LR}], lr=LR)
train(model, opt, N_STAGE1, shift=1.5)

for p in model.body.parameters():
    p.requires_grad = True
opt.add_param_group({"params": model.body.parameters(), "base_lr": opt.param_groups[0]["lr"] * 0.5})
train(model, opt, N_STAGE2, shift=1.5)

with torch.no_grad():
    x, y = sample(2000, 1.5)
    print("result:", F.mse_loss(model(x), y).item())
