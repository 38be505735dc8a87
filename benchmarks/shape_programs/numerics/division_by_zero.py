"""A mixture of small experts with sparse gates, fitted to a piecewise function."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(0)
torch.set_num_threads(1)


class Mixture(nn.Module):
    def __init__(self, dim=4, experts=3, width=24):
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.up = nn.Parameter(torch.randn(experts, dim, width) / dim**0.5)
        self.down = nn.Parameter(torch.randn(experts, width) / width**0.5)
        self.shift = nn.Parameter(torch.zeros(experts))

    def forward(self, x):
        share = F.normalize(F.relu(self.gate(x)), p=1, dim=-1, eps=0.0)
        hidden = torch.tanh(torch.einsum("bi,eih->beh", x, self.up))
        return (share * ((hidden * self.down).sum(-1) + self.shift)).sum(-1)


def sample(n):
    x = torch.rand(n, 4) * 2 - 1
    y = torch.where(x[:, 0] > 0, torch.sin(3 * x[:, 1]), x[:, 2] - 2 * x[:, 3])
    return x, y


net = Mixture()
weights = {k: v.detach().clone() for k, v in net.named_parameters()}
speed = {k: torch.zeros_like(v) for k, v in weights.items()}


def objective(w, x, y):
    return F.mse_loss(functional_call(net, w, (x,)), y)


step_fn = grad_and_value(objective)
for step in range(150):
    x, y = sample(128)
    grads, loss = step_fn(weights, x, y)
    for k in weights:
        speed[k] = 0.9 * speed[k] + grads[k]
        weights[k] = weights[k] - 0.03 * speed[k]
    if step % 50 == 0:
        print(step, loss.item())
x, y = sample(1000)
print("RESULT", objective(weights, x, y).item())
