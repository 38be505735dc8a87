"""Shared trunk, main task (class) and side task (reconstruction), mixed precision with a scaler for each."""
from types import SimpleNamespace

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
cfg = SimpleNamespace(seed=14, dim=40, hidden=64, classes=5, batch=64, steps=400, lr=0.15, side_weight=0.05)


def data(n, centres):
    y = torch.randint(0, cfg.classes, (n,))
    clutter = torch.randn(n, 6) @ centres[cfg.classes:] * 1.2
    return centres[:cfg.classes][y] + clutter + 0.9 * torch.randn(n, cfg.dim), y


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU())
        self.main = nn.Linear(cfg.hidden, cfg.classes)
        self.side = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.dim))


class Session:
    def __init__(self, net):
        self.net = net
        self.opt_main = torch.optim.SGD([*net.trunk.parameters(), *net.main.parameters()], lr=cfg.lr)
        self.opt_side = torch.optim.SGD(net.side.parameters(), lr=cfg.lr)
        self.scaler_main = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
        self.scaler_side = torch.amp.GradScaler("cpu", init_scale=2.0 ** 15)

    def step(self, x, y):
        self.opt_main.zero_grad()
        self.opt_side.zero_grad()
        with torch.autocast("cpu", torch.float16):
            h = self.net.trunk(x)
            logits, back = self.net.main(h), self.net.side(h)
        main = F.cross_entropy(logits.float(), y)
        side = cfg.side_weight * F.mse_loss(back.float(), x)
        self.scaler_main.scale(main).backward(retain_graph=True)
        self.scaler_side.scale(side).backward()
        for scaler, opt in ((self.scaler_main, self.opt_main), (self.scaler_side, self.opt_side)):
            scaler.step(opt)
            scaler.update()
        return main.item(), side.item()


def main():
    torch.manual_seed(cfg.seed)
    centres = torch.randn(cfg.classes + 6, cfg.dim) * 0.45
    x, y = data(4000, centres)
    xv, yv = data(2000, centres)
    session = Session(MultiTask())
    for k in range(cfg.steps):
        idx = torch.randint(0, len(x), (cfg.batch,))
        a, b = session.step(x[idx], y[idx])
        if k % 80 == 0:
            print(f"{k:4d} main {a:.4f} side {b:.4f}")
    with torch.no_grad():
        print("RESULT", F.cross_entropy(session.net.main(session.net.trunk(xv)), yv).item())


main()
