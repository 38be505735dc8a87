"""Learn the old machine first, then go on with the new machine at a fresh rate."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def machine(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(10, 10, generator=g) / 3, torch.randn(10, generator=g)


def readings(m, n, gen):
    x = torch.randn(n, 10, generator=gen)
    return x, torch.tanh(x @ m[0]) @ m[1]


class Session:
    def __init__(self, rate):
        self.net = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=rate, betas=(0.9, 0.95))

    def freeze_dry(self):
        return copy.deepcopy({"net": self.net.state_dict(), "opt": self.opt.state_dict()})

    def revive(self, packed):
        self.net.load_state_dict(packed["net"])
        self.opt.load_state_dict(packed["opt"])
        return self

    def train(self, m, steps, gen, shrink=1.0):
        for i in range(steps):
            x, y = readings(m, 64, gen)
            loss = F.mse_loss(self.net(x).squeeze(1), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            for g in self.opt.param_groups:
                g["lr"] *= shrink
            if i % 25 == 0:
                print(i, loss.item())
        return self


gen = torch.Generator().manual_seed(6)
packed = Session(rate=5e-3).train(machine(1), 75, gen, shrink=0.93).freeze_dry()

second = Session(rate=5e-3).revive(packed)
second.train(machine(2), 75, gen)

second.net.eval()
x, y = readings(machine(2), 500, gen)
with torch.no_grad():
    print("RESULT", float(F.mse_loss(second.net(x).squeeze(1), y)))
