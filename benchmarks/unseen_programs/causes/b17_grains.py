"""Grain type from small images; the best epoch is kept and handed to a fresh network for the test."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
SIZE, TYPES = 14, 4


def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, TYPES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    angle = y.float() * 0.785 + 0.15 * torch.randn(n, generator=g)
    wave = xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]
    shift = 6.28 * torch.rand(n, 1, 1, generator=g)
    img = 5.0 + 2.5 * torch.sin(7 * wave + shift) + 2.0 * torch.randn(n, SIZE, SIZE, generator=g)
    return img[:, None], y


def build():
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
    return nn.Sequential(block(1, 12), block(12, 16), nn.MaxPool2d(2), block(16, 24),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, TYPES))


class KeepBest:
    def __init__(self):
        self.error, self.weights = float("inf"), None

    def offer(self, error, net):
        if error < self.error:
            self.error = error
            self.weights = {k: v.detach().clone() for k, v in net.named_parameters()}

    def restore(self, net):
        net.load_state_dict(self.weights, strict=False)
        return net


def error_of(net, x, y):
    net.eval()
    with torch.no_grad():
        wrong = (net(x).argmax(1) != y).float().mean().item()
    net.train()
    return wrong


def main():
    torch.manual_seed(0)
    x, y = images(1500, 1)
    xv, yv = images(400, 2)
    xt, yt = images(600, 3)
    net, best = build(), KeepBest()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for epoch in range(6):
        for idx in torch.randperm(len(x)).split(50):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        error = error_of(net, xv, yv)
        best.offer(error, net)
        print(f"epoch {epoch}: loss {loss.item():.3f} valid error {error:.3f}")
    final = best.restore(build())
    print("RESULT", error_of(final, xt, yt))


main()
