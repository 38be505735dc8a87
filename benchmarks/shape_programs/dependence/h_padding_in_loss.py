"""Piano roll: most cells are silent, and silence has to be predicted too."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
T, STATES = 24, 5


def rolls(n, gen):
    """Token 0 is silence; a phrase of notes, then silence to the end."""
    stop = torch.randint(6, 18, (n, 1), generator=gen)
    first = torch.randint(0, 4, (n, 1), generator=gen)
    t = torch.arange(T)[None]
    notes = (first + t) % 4 + 1
    return torch.where(t < stop, notes, 0), stop.squeeze(1)


class Roll(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Embedding(4, 16)
        self.stop = nn.Embedding(18, 16)
        self.time = nn.Parameter(torch.randn(T, 16) * 0.3)
        self.net = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, STATES))

    def forward(self, first, stop):
        n = len(first)
        cond = torch.cat([self.start(first), self.stop(stop)], -1)[:, None].expand(-1, T, -1)
        return self.net(torch.cat([cond, self.time.expand(n, -1, -1)], -1))


gen = torch.Generator().manual_seed(3)
model = Roll()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(120):
    roll, stop = rolls(48, gen)
    loss = F.cross_entropy(model(roll[:, 0] - 1, stop).flatten(0, 1), roll.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
model.eval()
roll, stop = rolls(200, gen)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(model(roll[:, 0] - 1, stop).flatten(0, 1), roll.flatten())))
