"""Small camera pictures (12 bits) of parts on a belt, with an old-fashioned convolutional net."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(29)
torch.set_num_threads(1)


def pictures(n):
    kind = torch.randint(0, 3, (n,))
    yy, xx = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    phase = 6.28 * torch.rand(n, 1, 1)
    wave = torch.stack([torch.sin(xx * 0.9), torch.sin(yy * 0.9), torch.sin((xx + yy) * 0.7)])[kind]
    wave = wave * torch.cos(phase) + 0.8 * torch.randn(n, 14, 14)
    return (2048 + 700 * wave).clamp(0, 4095).unsqueeze(1), kind


def build():
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2), nn.ReLU(),
        nn.LocalResponseNorm(5, alpha=1e-3, beta=0.5, k=2.0),
        nn.Conv2d(12, 16, 3), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 3),
    )
    nn.init.kaiming_normal_(net[0].weight, nonlinearity="relu")
    return net


class Loop:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=5e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def loss(self, x, kind):
        with torch.autocast("cpu", torch.float16):
            return F.cross_entropy(self.net(x).float(), kind)

    def step(self, x, kind):
        self.opt.zero_grad()
        loss = self.loss(x, kind)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


loop = Loop(build())
for k in range(120):
    value = loop.step(*pictures(32))
    if k % 30 == 0:
        print(k, value)
with torch.no_grad():
    print("RESULT", loop.loss(*pictures(300)).item())
