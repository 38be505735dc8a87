"""Two regression tasks on one trunk, with projected conflicting gradients (PCGrad)."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.a = nn.Linear(48, 1)
        self.b = nn.Linear(48, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.a(h).squeeze(-1), self.b(h).squeeze(-1)


def targets(x):
    s = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2])
    return s + 0.3 * x[:, 3], -s + 0.5 * x[:, 4] ** 2


def flat(grads, params):
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, params)])


def project(g, other):
    dot = g @ other
    return g - dot / other.dot(other).clamp(min=1e-12) * other if dot < 0 else g


def assign(vec, params):
    i = 0
    for p in params:
        p.grad = vec[i:i + p.numel()].view_as(p).clone()
        i += p.numel()


model = MultiTask()
params = list(model.parameters())
opt = torch.optim.Adam(params, lr=3e-3)
vx = torch.randn(1000, 8)
va, vb = targets(vx)
conflicts = 0
for step in range(700):
    x = torch.randn(64, 8)
    ta, tb = targets(x)
    pa, pb = model(x)
    la, lb = F.mse_loss(pa, ta), F.mse_loss(pb, tb)
    ga = flat(torch.autograd.grad(la, params, retain_graph=True, allow_unused=True), params)
    gb = flat(torch.autograd.grad(lb, params, allow_unused=True), params)
    conflicts += int(ga @ gb < 0)
    assign(project(ga, gb) + project(gb, ga), params)
    opt.step()
    if step % 200 == 0:
        print(step, la.item(), lb.item(), "conflicts", conflicts)

with torch.no_grad():
    pa, pb = model(vx)
print("RESULT", (F.mse_loss(pa, va) + F.mse_loss(pb, vb)).item())
