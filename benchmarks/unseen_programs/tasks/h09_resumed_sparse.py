"""Trains a sparse spectrum model in fp16 in two sittings, with a penalty that starts late."""
import os
import tempfile

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(257)

EPOCHS, FREE = 16, 8


def spectra(n, gen):
    truth = torch.zeros(40, 1)
    truth[[3, 11, 17, 30]] = torch.tensor([[1.5], [-1.0], [0.8], [-1.2]])
    x = torch.randn(n, 40, generator=gen)
    return x, torch.tanh(x @ truth) + 0.1 * torch.randn(n, 1, generator=gen)


class GatedNet(nn.Module):
    """Every band has a gate; the penalty shuts the gates of bands that do not help."""

    def __init__(self, width=48):
        super().__init__()
        self.gate = nn.Parameter(torch.ones(40))
        self.net = nn.Sequential(nn.Linear(40, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x * self.gate)

    def penalty(self):
        return self.gate.abs().sum()


def penalty_weight(epoch):
    """None while the net finds its feet, then rising to 0.003."""
    return 0.003 * max(0, epoch - FREE + 1) / (EPOCHS - FREE)


class Run:
    def __init__(self):
        self.net = GatedNet()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=200)
        self.epoch = 0

    def save(self, path):
        parts = {"net": self.net, "opt": self.opt, "scaler": self.scaler}
        torch.save({k: v.state_dict() for k, v in parts.items()} | {"epoch": self.epoch}, path)

    @classmethod
    def resume(cls, path):
        run = cls()
        saved = torch.load(path, weights_only=True)
        run.net.load_state_dict(saved["net"])
        run.opt.load_state_dict(saved["opt"])
        run.scaler.load_state_dict(saved["scaler"])
        run.epoch = saved["epoch"]
        return run

    def train(self, x, y, until):
        while self.epoch < until:
            weight = penalty_weight(self.epoch)
            for pick in torch.randperm(len(x)).split(100):
                with torch.autocast("cpu", dtype=torch.float16):
                    fit = nn.functional.mse_loss(self.net(x[pick]), y[pick])
                loss = fit + weight * self.net.penalty()
                self.opt.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
            self.epoch += 1
            print(f"epoch {self.epoch} fit {fit.item():.4f} weight {weight:.4f} "
                  f"scale {self.scaler.get_scale():g}")

    @torch.no_grad()
    def error(self, x, y):
        return nn.functional.mse_loss(self.net(x), y).item()


gen = torch.Generator().manual_seed(1)
x, y = spectra(2400, gen)
val = spectra(400, gen)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "half.pt")
    first = Run()
    first.train(x, y, until=EPOCHS // 2)
    print("first sitting", round(first.error(*val), 4))
    first.save(path)
    run = Run.resume(path)
run.train(x, y, until=EPOCHS)
print("open gates", int((run.net.gate.abs() > 0.1).sum()))
print("RESULT", run.error(*val))
