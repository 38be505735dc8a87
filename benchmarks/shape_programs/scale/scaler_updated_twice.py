"""Additive model of house prices: one small net per feature, each with its own optimizer and learning rate."""
import torch
from torch import nn

torch.manual_seed(25)
torch.set_num_threads(1)
GAINS = [6.0, 6.0, 6.0, 6.0, 0.7, 0.7, 0.7, 0.7]


class FeatureNet(nn.Module):
    def __init__(self, column, gain, lr):
        super().__init__()
        self.column, self.gain = column, gain
        self.net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
        self.opt = torch.optim.SGD(self.parameters(), lr=lr / gain ** 2, momentum=0.9)

    def forward(self, x):
        return self.net(x[:, self.column, None]).float() * self.gain

    def apply_gradient(self, scaler):
        scaler.step(self.opt)
        self.opt.zero_grad()
        scaler.update()


class Additive(nn.Module):
    def __init__(self, gains, lr):
        super().__init__()
        self.parts = nn.ModuleList(FeatureNet(k, g, lr) for k, g in enumerate(gains))

    def forward(self, x):
        return sum(part(x) for part in self.parts)

    def learn(self, x, y, scaler):
        with torch.autocast("cpu", torch.float16):
            out = self(x)
        loss = (out - y).pow(2).mean()
        scaler.scale(loss).backward()
        for part in self.parts:
            part.apply_gradient(scaler)
        return loss.item()


def houses(n):
    x = torch.rand(n, len(GAINS)) * 4 - 2
    y = sum(g * torch.sin((1 + 0.2 * k) * x[:, k, None]) for k, g in enumerate(GAINS))
    return x, y


x, y = houses(2048)
xv, yv = houses(512)
net = Additive(GAINS, 0.02)
scaler = torch.amp.GradScaler("cpu", growth_interval=20)
for step in range(120):
    pick = torch.randint(0, len(x), (128,))
    net.learn(x[pick], y[pick], scaler)

with torch.no_grad():
    print("scale", scaler.get_scale())
    print("RESULT", float((net(xv) - yv).pow(2).mean()))
