"""A small trainer with hooks; the child class writes a log."""
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingLR

torch.manual_seed(0)
torch.set_num_threads(1)


class Trainer:
    def __init__(self, model, rounds, rate):
        self.model, self.rounds = model, rounds
        self.opt = torch.optim.Adam(model.parameters(), lr=rate)
        self.sched = CosineAnnealingLR(self.opt, T_max=rounds)

    def after_round(self, r, loss):
        self.sched.step()

    def fit(self, batches):
        for r in range(self.rounds):
            for x, y in batches():
                self.opt.zero_grad()
                loss = self.model.loss(x, y)
                loss.backward()
                self.opt.step()
            self.after_round(r, loss.item())
        return self


class Logged(Trainer):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.log = []

    def after_round(self, r, loss):
        self.log.append((r, loss))
        print("round", r, "loss", round(loss, 4))


class Spring(nn.Module):
    """Position of a damped spring after one second, from start, speed and stiffness."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))

    def loss(self, x, y):
        return (self.net(x).squeeze(1) - y).pow(2).mean()


gen = torch.Generator().manual_seed(1)


def motion(n, noise):
    x = torch.rand(n, 3, generator=gen) * 2 - 1
    w = 1.5 + x[:, 2]
    y = x[:, 0] * torch.cos(w) + x[:, 1] * torch.sin(w) / w
    return x, y + noise * torch.randn(n, generator=gen)


trainer = Logged(Spring(), rounds=14, rate=0.1)
trainer.fit(lambda: (motion(16, 0.4) for _ in range(10)))

trainer.model.eval()
with torch.no_grad():
    print("RESULT", float(trainer.model.loss(*motion(1000, 0.0))))
