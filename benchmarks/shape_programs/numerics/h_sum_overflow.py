"""Length of a wire from local slopes, in 16 bits; the total is accumulated in 32."""
import torch
from torch import nn

torch.manual_seed(31)
torch.set_num_threads(1)
PIECES = 64


def wires(n):
    slope = torch.randn(n, PIECES) * torch.rand(n, 1)
    length = 2000 * torch.sqrt(1 + slope.square())
    return slope, length.sum(1)


class Wire(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, slope):
        piece = 2000 * (1 + self.net(slope.unsqueeze(-1)).squeeze(-1))
        return torch.sum(piece, 1, dtype=torch.float32)


net = Wire()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(120):
    slope, total = wires(48)
    with torch.autocast("cpu", torch.float16):
        guess = net(slope)
    loss = ((guess - total) / total).abs().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 40 == 0:
        print(step, loss.item())
slope, total = wires(400)
with torch.no_grad():
    print("RESULT", ((net(slope) - total) / total).abs().mean().item())
