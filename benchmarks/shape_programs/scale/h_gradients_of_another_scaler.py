"""Shop forecasts in two stages: the second net reads the first one's output, each with its own scaler."""
import torch
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)


def shops(n):
    x = torch.randn(n, 8)
    price = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    return x, price, 2 * torch.cos(1.5 * price) + x[:, 4:5]


def stage(d_in):
    net = nn.Sequential(nn.Linear(d_in, 64), nn.Tanh(), nn.Linear(64, 1))
    return net, torch.optim.Adam(net.parameters(), lr=1e-2)


x, price, demand = shops(2048)
xv, pv, dv = shops(512)
(first, first_opt), (second, second_opt) = stage(8), stage(9)
s1 = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
s2 = torch.amp.GradScaler("cpu", init_scale=2.0 ** 6)
for step in range(100):
    pick = torch.randint(0, len(x), (128,))
    first_opt.zero_grad()
    second_opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        a = first(x[pick])
        b = second(torch.cat([x[pick], a.detach().float()], 1))
    one = s1.scale((a.float() - price[pick]).pow(2).mean())
    two = s2.scale((b.float() - demand[pick]).pow(2).mean())
    torch.autograd.backward([one, two])
    for s, o in ((s2, second_opt), (s1, first_opt)):
        s.step(o)
        s.update()

with torch.no_grad():
    a = first(xv)
    b = second(torch.cat([xv, a], 1))
    print("RESULT", float((a - pv).pow(2).mean() + (b - dv).pow(2).mean()))
