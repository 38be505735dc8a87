"""Vibration classifier with its own normalization layer, in mixed precision."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Standardize(nn.Module):
    def __init__(self, width, pace=0.05, dtype=torch.bfloat16):
        super().__init__()
        self.pace = pace
        self.register_buffer("centre", torch.zeros(width, dtype=dtype))
        self.register_buffer("spread", torch.ones(width, dtype=dtype))

    def forward(self, x):
        x = x.to(self.centre.dtype)
        return F.batch_norm(x, self.centre, self.spread, training=self.training, momentum=self.pace)


class Vibration(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.sense = nn.Conv1d(1, width, 9)
        self.norm = Standardize(width)
        self.mix = nn.Conv1d(width, width, 5)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        h = torch.relu(self.norm(self.sense(x)))
        return self.head(torch.relu(self.mix(h)).mean(-1))


def records(n, g):
    label = torch.randint(0, 3, (n,), generator=g)
    t = torch.arange(48.0)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    wave = torch.sin(t * (0.4 + 0.25 * label[:, None]) + phase)
    return (40 + wave + 0.2 * torch.randn(n, 48, generator=g)).unsqueeze(1), label


g = torch.Generator().manual_seed(11)
model = Vibration()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(150):
    x, label = records(32, g)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x - 20)
    loss = F.cross_entropy(out.float(), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    x, label = records(500, g)
    out = model(x - 20)
print("RESULT", F.cross_entropy(out.float(), label).item())
