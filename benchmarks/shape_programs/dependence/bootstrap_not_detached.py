"""Successor features of a windy corridor, learned from single transitions."""
import torch
import torch.nn as nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(3)
torch.set_num_threads(1)
N, GAMMA, D = 12, 0.9, 4
features = torch.randn(N, D)


def walk(state, gen):
    drift = torch.rand(state.shape, generator=gen)
    jump = torch.randint(-5, 6, state.shape, generator=gen)
    return torch.where(drift < 0.6, (state + jump) % N, (state + 1) % N)


def exact():
    P = torch.zeros(N, N)
    for s in range(N):
        for j in range(-5, 6):
            P[s, (s + j) % N] += 0.6 / 11
        P[s, (s + 1) % N] += 0.4
    return torch.linalg.solve(torch.eye(N) - GAMMA * P, features)


class Psi(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(N, 32)
        self.out = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, D))

    def forward(self, s):
        return self.out(self.table(s))


net = Psi()
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}


def objective(p, s, nxt):
    here = functional_call(net, p, (s,))
    there = functional_call(net, p, (nxt,))
    goal = features[s] + GAMMA * there
    return (here - goal).pow(2).sum(-1).mean()


opt = torch.optim.Adam(params.values(), lr=1e-2)
gen = torch.Generator().manual_seed(0)
for step in range(150):
    s = torch.randint(0, N, (256,), generator=gen)
    grads, loss = grad_and_value(objective)(params, s, walk(s, gen))
    for k, v in params.items():
        v.grad = grads[k]
    opt.step()
    if step % 50 == 0:
        print(step, float(loss))

with torch.no_grad():
    err = (functional_call(net, params, (torch.arange(N),)) - exact()).pow(2).mean()
print("RESULT", float(err))
