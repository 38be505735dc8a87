"""Train a recurrent network to carry early readings of a process log to its end."""
import torch
torch.set_num_threads(1)
torch.manual_seed(160)
from torch import nn
import torch.nn.functional as F

LENGTH, KEYS = 14, 6


def logs(n, gen=None):
    x = torch.randn(n, LENGTH, KEYS + 1, generator=gen) * 0.3
    key = torch.randint(KEYS, (n,), generator=gen)
    x[torch.arange(n), 2, key] += 3.0
    spike = torch.rand(n, generator=gen) < 0.04
    x[spike, :, KEYS] *= 60.0
    return x, key


class Cell(nn.Module):
    def __init__(self, n_in, width):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.rec = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.rec.weight)

    def forward(self, x, h):
        return F.relu(self.inp(x) + self.rec(h))


class Carrier(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.cell = Cell(KEYS + 1, width)
        self.out = nn.Linear(width, KEYS)
        self.width = width

    def forward(self, x):
        h = x.new_zeros(len(x), self.width)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.out(h)


class Run:
    def __init__(self, model, lr, max_norm):
        self.model = model
        self.params = filter(lambda p: p.requires_grad, model.parameters())
        self.opt = torch.optim.SGD(self.params, lr=lr, momentum=0.9)
        self.max_norm = max_norm

    def step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, self.max_norm)
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        quiet = x[:, :, KEYS].abs().amax(1) < 5
        return F.cross_entropy(self.model(x[quiet]), y[quiet]).item()


run = Run(Carrier(), lr=0.03, max_norm=0.5)
x_val, y_val = logs(1000, torch.Generator().manual_seed(9))
for step in range(350):
    value = run.step(*logs(64))
    if step % 70 == 0:
        print(f"step {step} train {value:.4f} val {run.evaluate(x_val, y_val):.4f}")
print("RESULT", run.evaluate(x_val, y_val))
