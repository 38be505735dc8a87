"""Tabular churn model; the experiment object stores itself every epoch and picks up where it was."""
import os
import tempfile

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

torch.manual_seed(11)
torch.set_num_threads(1)


class Stateful:
    kinds = (nn.Module, Optimizer, LRScheduler)

    def _members(self):
        return {k: v for k, v in vars(self).items() if isinstance(v, self.kinds)}

    def save(self, path):
        torch.save({"epoch": self.epoch, **{k: v.state_dict() for k, v in self._members().items()}}, path)

    def load(self, path):
        state = torch.load(path)
        self.epoch = state["epoch"]
        for name, member in self._members().items():
            member.load_state_dict(state[name])


class Churn(Stateful):
    def __init__(self):
        self.epoch = 0
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=4e-3)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 4, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30)

    def train_epoch(self, x, y):
        for pick in torch.randperm(len(x)).split(100):
            self.opt.zero_grad()
            with torch.autocast("cpu", torch.float16):
                logit = self.net(x[pick]).squeeze(-1)
            loss = nn.functional.binary_cross_entropy_with_logits(logit.float(), y[pick])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
        self.sched.step()
        self.epoch += 1


def customers(n):
    x = torch.randn(n, 10)
    return x, ((x[:, 0] * x[:, 1] + x[:, 2].abs() - 0.8 + 0.2 * torch.randn(n)) > 0).float()


x, y = customers(1200)
xv, yv = customers(400)
path = os.path.join(tempfile.mkdtemp(), "churn.pt")
run = Churn()
if os.path.exists(path):
    run.load(path)
while run.epoch < 10:
    run.train_epoch(x, y)
    run.save(path)

with torch.no_grad():
    print("RESULT", float(nn.functional.binary_cross_entropy_with_logits(run.net(xv).squeeze(-1), yv)))
