"""Fit the swing of a damped pendulum from early measurements and its equation of motion."""
import torch
torch.set_num_threads(1)
torch.manual_seed(121)
import numpy as np
from torch import nn

OMEGA2, DAMPING, T_END = 4.0, 0.3, 6.0


def true_angle(t):
    w = np.sqrt(OMEGA2 - (DAMPING / 2) ** 2)
    return np.exp(-DAMPING / 2 * t) * np.cos(w * t)


class Swing(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Linear(1, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        nn.init.normal_(self.inp.weight, std=2.0)
        nn.init.uniform_(self.inp.bias, -3, 3)

    def forward(self, t):
        h = torch.sin(self.inp(t / 2))
        return self.out(torch.tanh(self.mid(h))).squeeze(1)


grid = torch.linspace(0, T_END, 241)[:, None]
DT = T_END / 240


def motion_residual(model):
    """Residual of the equation of motion on the grid, by central differences."""
    angle = model(grid).detach().numpy()
    speed = np.gradient(angle, DT)
    accel = np.gradient(speed, DT)
    res = accel + DAMPING * speed + OMEGA2 * angle
    return torch.from_numpy(res[2:-2].astype(np.float32))


rng = np.random.default_rng(0)
t_obs = np.sort(rng.uniform(0, 2.2, 30))
y_obs = true_angle(t_obs) + rng.normal(0, 0.02, 30)
t_obs = torch.tensor(t_obs, dtype=torch.float32)[:, None]
y_obs = torch.tensor(y_obs, dtype=torch.float32)
reference = torch.tensor(true_angle(grid[:, 0].numpy()), dtype=torch.float32)

model = Swing()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 400, eta_min=1e-4)
history = []
for step in range(400):
    data = (model(t_obs) - y_obs).square().mean()
    motion = motion_residual(model).square().mean()
    loss = data + 0.02 * motion
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    history.append((data.item(), motion.item()))
    if step % 80 == 0:
        print(f"step {step} data {history[-1][0]:.5f} motion {history[-1][1]:.4f}")

with torch.no_grad():
    print("RESULT", (model(grid) - reference).square().mean().item())
