# Every step stands in an autocast block; the loss, its backward pass and the update leave it for themselves.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 3))
opt = torch.optim.Adam(net.parameters(), lr=6e-3)
full = torch.autocast("cpu", enabled=False)


def draw(n):
    x = torch.randn(n, 9)
    return x, (x[:, 0] > 0).long() + (x[:, 1] + x[:, 2] > 0).long()


@full
def settle(logits, y):
    loss = nn.functional.cross_entropy(logits.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


for step in range(120):
    x, y = draw(64)
    with torch.autocast("cpu", torch.bfloat16):
        value = settle(net(x), y)
x, y = draw(800)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x), y).item())
