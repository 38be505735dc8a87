"""Hourly visitor counts of a shop from weather and calendar: a count regression."""
import math

import torch
from torch import nn

torch.manual_seed(9)
torch.set_num_threads(1)


def visitors(n, g):
    hour = torch.randint(0, 24, (n,), generator=g).float()
    rain = torch.rand(n, generator=g)
    rate = 6 * torch.exp(-((hour - 14) / 4) ** 2) * (1.3 - rain) + 0.02
    count = torch.poisson(rate, generator=g)
    x = torch.stack([torch.sin(hour * math.pi / 12), torch.cos(hour * math.pi / 12), rain], 1)
    return x, count


class Trainer:
    loss_fn = nn.PoissonNLLLoss(log_input=False, eps=0.0)

    def __init__(self, net, lr):
        self.net, self.opt = net, torch.optim.Adam(net.parameters(), lr=lr)

    def fit(self, batches):
        for k, (x, count) in enumerate(batches):
            loss = self.loss_fn(self.net(x).squeeze(1), count)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if k % 50 == 0:
                print(k, float(loss))

    @torch.no_grad()
    def score(self, x, count):
        return float(self.loss_fn(self.net(x).squeeze(1), count))


g = torch.Generator().manual_seed(1)
net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1), nn.ReLU())
net[-2].bias.data.fill_(0.2)
trainer = Trainer(net, 1e-2)
trainer.fit(visitors(96, g) for _ in range(150))
print("RESULT", trainer.score(*visitors(2000, g)))
