"""Warm restarts make the rate jump up several times; the second group rests at rate 0 during the first cycle."""
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
import math

torch.set_num_threads(1)
torch.manual_seed(12)

CYCLES, CYCLE_STEPS = 4, 120


def cosine(step):
    return 0.5 * (1 + math.cos(math.pi * (step % CYCLE_STEPS) / CYCLE_STEPS))


def delayed(step):
    return 0.0 if step < CYCLE_STEPS else cosine(step)


class WideDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(12, 1)
        self.deep = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 1))
        nn.init.zeros_(self.deep[2].weight)
        nn.init.zeros_(self.deep[2].bias)

    def forward(self, x):
        return self.wide(x) + self.deep(x)


coef = torch.randn(12, 1)


def sample(n):
    x = torch.randn(n, 12)
    return x, x @ coef + torch.sin(2 * x[:, :1]) * x[:, 1:2]


model = WideDeep()
opt = torch.optim.Adam([
    {"params": model.wide.parameters(), "lr": 0.05},
    {"params": model.deep.parameters(), "lr": 0.01},
])
sched = LambdaLR(opt, [cosine, delayed])
snapshots = []
for step in range(CYCLES * CYCLE_STEPS):
    x, y = sample(64)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if (step + 1) % CYCLE_STEPS == 0:
        snapshots.append({k: v.clone() for k, v in model.state_dict().items()})
        print(f"cycle {len(snapshots)} loss {loss.item():.4f} next rates {sched.get_last_lr()}")

x, y = sample(3000)
preds = []
for state in snapshots[-2:]:
    model.load_state_dict(state)
    with torch.no_grad():
        preds.append(model(x))
print("RESULT", nn.functional.mse_loss(torch.stack(preds).mean(0), y).item())
