"""Grey-box identification: stiffness and damping of a spring, plus a small net for the unknown friction."""
import math
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(73)

K_TRUE, C_TRUE = 42.0, 1.5
STEPS, WARMUP, BASE_LR = 500, 50, 2e-3

x = torch.rand(2000, 1) * 2 - 1
v = torch.rand(2000, 1) * 8 - 4
a = -K_TRUE * x - C_TRUE * v - 0.8 * torch.tanh(5 * v)
a = a + 0.1 * torch.randn_like(a)


class GreyBox(nn.Module):
    def __init__(self):
        super().__init__()
        self.stiffness = nn.Parameter(torch.tensor(10.0))
        self.damping = nn.Parameter(torch.tensor(0.2))
        self.friction = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x, v):
        return -self.stiffness * x - self.damping * v + self.friction(v)


def shape(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


model = GreyBox()
optimizer = torch.optim.Adam([
    {"params": [model.stiffness, model.damping], "lr": 0.4},
    {"params": model.friction.parameters(), "lr": BASE_LR},
])

for step in range(STEPS):
    lr = BASE_LR * shape(step)
    for group in optimizer.param_groups:
        group["lr"] = lr

    idx = torch.randint(0, len(x), (64,))
    loss = (model(x[idx], v[idx]) - a[idx]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step:4d} loss {loss.item():9.4f}  k {model.stiffness.item():6.2f}  c {model.damping.item():5.2f}")

with torch.no_grad():
    rms = (model(x, v) - a).pow(2).mean().sqrt().item()
print("k =", model.stiffness.item(), "c =", model.damping.item())
print("RESULT", rms)
