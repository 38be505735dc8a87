"""Forecast of a noisy seasonal series with a small trainer and callbacks."""
import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(27)
t = torch.arange(1500.0)
series = torch.sin(t / 6) + 0.5 * torch.sin(t / 17) + 0.1 * torch.randn(1500)
frames = series.unfold(0, 25, 1)
past, future = frames[:, :24], frames[:, 24]


class Cosine:
    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def on_step(self, trainer, step):
        trainer.set_rate(0.5 * self.peak * (1 + math.cos(math.pi * step / self.steps)))


class Trainer:
    def __init__(self, net, callbacks):
        self.net, self.callbacks = net, callbacks
        self.opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.95, nesterov=True)

    def set_rate(self, rate):
        options = {**self.opt.defaults, "lr": rate}
        self.opt = type(self.opt)(self.net.parameters(), **options)

    def fit(self, steps):
        for step in range(steps):
            for c in self.callbacks:
                c.on_step(self, step)
            rows = torch.randint(0, 1200, (64,))
            loss = nn.functional.mse_loss(self.net(past[rows]).squeeze(1), future[rows])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % 30 == 0:
                print(step, round(loss.item(), 4))

    @torch.no_grad()
    def score(self):
        return nn.functional.mse_loss(self.net(past[1200:]).squeeze(1), future[1200:]).item()


trainer = Trainer(nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 1)), [Cosine(0.006, 120)])
trainer.fit(120)
print("RESULT", trainer.score())
