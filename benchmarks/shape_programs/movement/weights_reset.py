"""Sharpness-aware training of a small tabular classifier."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(39)
x = torch.randn(800, 14)
y = ((x[:, 0] - x[:, 1]).abs() > 1).long() + (x[:, 2] > 0).long()


class SharpnessAware(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, dict(rho=rho))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    def _all(self):
        return [p for g in self.param_groups for p in g["params"] if p.grad is not None]

    @torch.no_grad()
    def climb(self):
        size = torch.stack([p.grad.norm() for p in self._all()]).norm()
        for p in self._all():
            state = self.state[p]
            if "origin" not in state:
                state["origin"] = p.detach().clone()
            p.add_(p.grad, alpha=0.05 / (size.item() + 1e-12))

    @torch.no_grad()
    def descend(self):
        for p in self._all():
            p.copy_(self.state[p]["origin"])
        self.base.step()

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        self.climb()
        closure()
        self.descend()
        return loss


net = nn.Sequential(nn.Linear(14, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
opt = SharpnessAware(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for step in range(100):
    rows = torch.randint(0, 600, (64,))

    def closure():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        loss.backward()
        return loss

    loss = opt.step(closure)
    if step % 25 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x[600:]), y[600:]).item())
