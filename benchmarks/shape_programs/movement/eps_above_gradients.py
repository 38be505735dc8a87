"""Surrogate for the deflection of loaded beams, all quantities in SI units."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(23)

n = 1000
length = 0.05 + 0.05 * torch.rand(n)           # m
force = 1.0 + 4.0 * torch.rand(n)              # N
width = 0.01 + 0.01 * torch.rand(n)            # m
height = 0.006 + 0.004 * torch.rand(n)         # m
inertia = width * height ** 3 / 12
deflection = force * length ** 3 / (3 * 2.1e11 * inertia)      # m
raw = torch.stack([length, force, width, height], 1).log()
inputs = (raw - raw.mean(0)) / raw.std(0)


class Beam(nn.Module):
    """Predicts in micrometres and returns metres."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, v):
        return self.net(v).squeeze(1) * 1e-6


beam = Beam()
opt = torch.optim.Adam(beam.parameters(), lr=1e-2)
for step in range(130):
    rows = torch.randint(0, 800, (64,))
    loss = (beam(inputs[rows]) - deflection[rows]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, f"rms error {loss.item() ** 0.5:.3e} m")
with torch.no_grad():
    error = (beam(inputs[800:]) - deflection[800:]).square().mean().sqrt() * 1e6
print("RESULT", error.item())
