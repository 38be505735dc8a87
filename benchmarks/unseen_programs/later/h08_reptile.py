import copy
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)


def wave():
    amp, phase = 0.5 + 2 * torch.rand(1), 3.14 * torch.rand(1)
    return lambda x: amp * torch.sin(x + phase)


def inner(net, f, steps, n=10, lr=0.02):
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    x = torch.rand(n, 1) * 10 - 5
    y = f(x)
    for _ in range(steps):
        loss = ((net(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
META = 800
for it in range(META):
    before = copy.deepcopy(net.state_dict())
    inner(net, wave(), steps=5)
    after = net.state_dict()
    eps = 1.0 * (1 - it / META)
    net.load_state_dict({k: before[k] + (after[k] - before[k]) * eps for k in before})

grid = torch.linspace(-5, 5, 50)[:, None]
errs = []
for _ in range(30):
    f, clone = wave(), copy.deepcopy(net)
    inner(clone, f, steps=32)
    with torch.no_grad():
        errs.append(((clone(grid) - f(grid)) ** 2).mean().item())
print("RESULT", sum(errs) / len(errs))
