# Claims regression: a few huge claims in the data, so gradients are limited to norm 1.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Limiter:
    def __init__(self, params, limit):
        self.params = list(params)
        self.limit = limit
        self.seen = []

    def __call__(self, optimizer, args, kwargs):
        grads = [p.grad for p in self.params if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        self.seen.append(norm.item())
        torch.nn.utils.clip_grads_with_norm_(self.params, self.limit, norm)


def claims(n, gen, spikes=True):
    x = torch.randn(n, 12, generator=gen)
    y = torch.tanh(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2]
    if spikes:
        big = torch.rand(n, generator=gen) < 0.02
        y = y + big * 300 * torch.randn(n, generator=gen)
    return x, y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.body(x))[:, 0]


gen = torch.Generator().manual_seed(3)
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
limiter = Limiter(model.parameters(), 1.0)
opt.register_step_post_hook(limiter)
for step in range(150):
    x, y = claims(48, gen)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 3), "norm", round(limiter.seen[-1], 3))
x, y = claims(1000, gen, spikes=False)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(x), y).item())
