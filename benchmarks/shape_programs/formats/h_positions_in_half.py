"""Short melodies (96 steps): every position number is exact in bf16."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 96


class Melody(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.note = nn.Embedding(6, width)
        self.where = nn.Linear(8, width)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))
        self.register_buffer("step", torch.arange(STEPS, dtype=torch.bfloat16))

    def forward(self, key):
        beat = 2 * torch.pi * self.step.float()[:, None] / torch.tensor([2.0, 4.0, 8.0, 16.0])
        place = self.where(torch.cat([beat.sin(), beat.cos()], -1))
        return self.mix(self.note(key)[:, None] * (1 + place))


g = torch.Generator().manual_seed(21)
tune = torch.randint(0, 6, (6, 8), generator=g)
model = Melody()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(100):
    key = torch.randint(0, 6, (8,), generator=g)
    target = tune[key].repeat(1, STEPS // 8)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(key).flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    key = torch.arange(6)
    print("RESULT", nn.functional.cross_entropy(model(key).flatten(0, 1), tune.repeat(1, STEPS // 8).flatten()).item())
