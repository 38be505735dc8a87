# Continual learning: the second task may not hurt the first, whose examples are kept in a small memory.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Learner:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr)
        self.memory = None

    def loss(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def gradients(self, batch):
        self.opt.zero_grad(set_to_none=False)
        self.loss(batch).backward()
        return [p.grad for p in self.net.parameters()]

    def observe(self, batch):
        guard = self.gradients(self.memory) if self.memory is not None else None
        current = self.gradients(batch)
        if guard is not None:
            overlap = sum((c * g).sum() for c, g in zip(current, guard))
            if overlap < 0:
                size = sum((g * g).sum() for g in guard)
                for c, g in zip(current, guard):
                    c.sub_(overlap / size * g)
        self.opt.step()


def task(which, n, gen):
    x = torch.randn(n, 12, generator=gen)
    if which == 0:
        x[:, 6:] = 0.0
        return x, (x[:, 0] + x[:, 1] > 0).long()
    x[:, 3:6] = 0.0
    return x, (x[:, 0] + 0.3 * x[:, 7] < 0).long()


gen = torch.Generator().manual_seed(1)
net = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 2))
learner = Learner(net, lr=0.3)
for step in range(60):
    learner.observe(task(0, 48, gen))
learner.memory = task(0, 200, gen)
for step in range(60):
    learner.observe(task(1, 48, gen))
with torch.no_grad():
    first, second = learner.loss(task(0, 1000, gen)).item(), learner.loss(task(1, 1000, gen)).item()
print("first task", round(first, 4), "second task", round(second, 4))
print("RESULT", first)
