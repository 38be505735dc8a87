# Two-point gradients (SVRG style): old gradients are kept while new tensors take their place.
import copy
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(512, 8)
y = (x[:, :1] * 1.5 - x[:, 1:2]).tanh() + 0.1 * torch.randn(512, 1)
net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
old = copy.deepcopy(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def slope(model, idx):
    for p in model.parameters():
        p.grad = None
    nn.functional.mse_loss(model(x[idx]), y[idx]).backward()
    return [p.grad for p in model.parameters()]


for epoch in range(8):
    old.load_state_dict(net.state_dict())
    full = slope(old, slice(None))
    for step in range(16):
        idx = torch.randint(0, 512, (32,))
        there = slope(old, idx)
        here = slope(net, idx)
        for p, h, t, f in zip(net.parameters(), here, there, full):
            p.grad = h - t + f
        opt.step()
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x), y).item())
