"""Two shifts with a saved schedule position; the schedule is a function of the stored step."""
import io
import math
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
TOTAL, SHIFT, PEAK = 140, 60, 1.5e-2
gen = torch.Generator().manual_seed(8)


def readings(n):
    x = torch.rand(n, 4, generator=gen) * 2 - 1
    return x, (torch.sin(3 * x[:, 0]) * x[:, 1] + x[:, 2].abs())[:, None]


def fresh():
    net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    return net, torch.optim.Adam(net.parameters(), lr=PEAK), {"step": 0}


def rate(step):
    return PEAK * min(1.0, (step + 1) / 15) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / TOTAL)))


def run(net, opt, clock, until):
    while clock["step"] < until:
        for g in opt.param_groups:
            g["lr"] = rate(clock["step"])
        x, y = readings(48)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        clock["step"] += 1
    print(clock, loss.item())


disk = io.BytesIO()
net, opt, clock = fresh()
run(net, opt, clock, SHIFT)
torch.save([net.state_dict(), opt.state_dict(), clock], disk)

disk.seek(0)
stored = torch.load(disk)
net, opt, _ = fresh()
net.load_state_dict(stored[0])
opt.load_state_dict(stored[1])
run(net, opt, stored[2], TOTAL)

x, y = readings(1000)
with torch.no_grad():
    print("RESULT", float(nn.functional.mse_loss(net(x), y)))
