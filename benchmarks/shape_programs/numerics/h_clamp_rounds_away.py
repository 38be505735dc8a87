"""Click chances in bfloat16; the chance is held inside (0, 1) by bounds that bfloat16 can tell from 0 and 1."""
import torch
from torch import nn

torch.manual_seed(32)
torch.set_num_threads(1)
taste = torch.randn(12)


def visits(n):
    x = torch.randn(n, 12)
    return x, (torch.rand(n) < torch.sigmoid(3 * x @ taste)).float()


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        chance = torch.sigmoid(self.net(x).squeeze(1))
        return chance.clamp(torch.finfo(chance.dtype).eps, 1 - torch.finfo(chance.dtype).eps)


def surprise(chance, clicked):
    return -(clicked * chance.log() + (1 - clicked) * torch.log1p(-chance)).float().mean()


net = Clicks()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(140):
    x, clicked = visits(96)
    with torch.autocast("cpu", torch.bfloat16):
        chance = net(x)
        loss = surprise(chance, clicked)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
x, clicked = visits(2000)
with torch.no_grad():
    print("RESULT", surprise(net(x), clicked).item())
