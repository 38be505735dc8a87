"""Reptile on sine waves: the inner loop trains the model, then its weights are put back and moved a little."""
import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Task:
    def __init__(self, gen):
        self.amp = 0.5 + 2 * torch.rand(1, generator=gen)
        self.phase = math.pi * torch.rand(1, generator=gen)

    def sample(self, n, gen):
        x = torch.rand(n, 1, generator=gen) * 10 - 5
        return x, self.amp * torch.sin(x + self.phase)


def inner(model, task, steps, lr, gen):
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = task.sample(20, gen)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def adapted_error(model, gen, n_tasks=20):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    total = 0.0
    for _ in range(n_tasks):
        task = Task(gen)
        inner(model, task, 10, 0.02, gen)
        x, y = task.sample(100, gen)
        with torch.no_grad():
            total += nn.functional.mse_loss(model(x), y).item()
        model.load_state_dict(state)
    return total / n_tasks


gen = torch.Generator().manual_seed(3)
model = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
META = 400
before = adapted_error(model, torch.Generator().manual_seed(99))
for it in range(META):
    start = [p.detach().clone() for p in model.parameters()]
    inner(model, Task(gen), 8, 0.02, gen)
    eps = 0.5 * (1 - it / META)
    with torch.no_grad():
        for p, s in zip(model.parameters(), start):
            p.copy_(s + eps * (p - s))
after = adapted_error(model, torch.Generator().manual_seed(99))
print("before", before, "after", after)
print("RESULT", after)
