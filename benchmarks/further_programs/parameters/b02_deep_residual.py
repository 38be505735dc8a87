import math
import torch
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(x))))


class ResidualRegressor(nn.Module):
    def __init__(self, d_in, width=12, depth=6):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList([Block(width)] * depth)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = block(h)
        return self.out(h).squeeze(-1)


def target(x):
    a = torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1])
    b = torch.where(x[:, 2] > 0, x[:, 3], -x[:, 4])
    c = torch.sin(4 * x[:, 5] * x[:, 0])
    return a + b + c


def batches(n, size):
    for _ in range(n):
        x = torch.rand(size, 6) * 2 - 1
        yield x, target(x)


model = ResidualRegressor(6)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
total = 800
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1.0, (s + 1) / 50) * 0.5 * (1 + math.cos(math.pi * min(s, total) / total)))
loss_fn = nn.MSELoss()
for i, (x, y) in enumerate(batches(total, 64)):
    loss = loss_fn(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if i % 200 == 0:
        print(i, loss.item())

model.eval()
with torch.no_grad():
    x, y = next(batches(1, 2000))
    print("RESULT", loss_fn(model(x), y).item())
