import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)


class Standardise(nn.Module):
    def __init__(self, data, dtype):
        super().__init__()
        self.dtype = dtype
        self.register_buffer("mean", data.mean(0))
        self.register_buffer("std", data.std(0))

    def forward(self, x):
        x = x.to(self.dtype)
        return (x - self.mean.to(self.dtype)) / self.std.to(self.dtype)


class Sensor(nn.Module):
    """Fault classifier for 24 thermocouples."""

    def __init__(self, data, channels=24):
        super().__init__()
        self.prepare = Standardise(data, torch.bfloat16)
        self.lift = nn.Linear(channels, 48)
        self.norm = nn.LayerNorm(48)
        self.mid = nn.Linear(48, 48)
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        h = F.relu(self.norm(self.lift(self.prepare(x))))
        return self.head(F.relu(self.mid(h)))


def readings(n, protos):
    y = torch.randint(5, (n,))
    gain = 0.5 + torch.rand(n, 1)
    return 290.0 + gain * protos[y] + 0.5 * torch.randn(n, 24), y


protos = 0.5 * torch.randn(5, 24)
x, y = readings(1600, protos)
vx, vy = readings(1600, protos)
model = Sensor(x)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(10):
    model.train()
    for idx in torch.randperm(len(x)).split(40):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x[idx])
        loss = F.cross_entropy(logits.float(), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 4 == 0:
        print(epoch, loss.item())

model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    print("RESULT", F.cross_entropy(model(vx).float(), vy).item())
