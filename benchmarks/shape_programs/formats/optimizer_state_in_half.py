"""A memory-lean adaptive optimizer on a time-series forecaster."""
import torch
from torch import nn
from torch.optim import Optimizer

torch.manual_seed(0)
torch.set_num_threads(1)


class Lean(Optimizer):
    def __init__(self, params, lr=3e-3, drag=0.9, memory=0.99, tiny=1e-8, keep=torch.float16):
        super().__init__(params, dict(lr=lr, drag=drag, memory=memory, tiny=tiny))
        self.keep = keep

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["t"] = 0
                    s["pull"] = torch.zeros_like(p, dtype=self.keep)
                    s["power"] = torch.zeros_like(p, dtype=self.keep)
                s["t"] += 1
                s["pull"].copy_(group["drag"] * s["pull"].float() + (1 - group["drag"]) * p.grad)
                s["power"].copy_(group["memory"] * s["power"].float() + (1 - group["memory"]) * p.grad ** 2)
                pull = s["pull"].float() / (1 - group["drag"] ** s["t"])
                power = s["power"].float() / (1 - group["memory"] ** s["t"])
                p.sub_(group["lr"] * pull / (power.sqrt() + group["tiny"]))
        return loss


def series(n, g, length=24):
    t = torch.arange(float(length + 1))
    speed = 0.2 + 0.4 * torch.rand(n, 1, generator=g)
    x = torch.sin(speed * t + 6.28 * torch.rand(n, 1, generator=g))
    x = x + 0.02 * torch.randn(x.shape, generator=g)
    return x[:, :-1], x[:, -1:]


g = torch.Generator().manual_seed(17)
model = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = Lean(model.parameters())
for step in range(150):
    past, nxt = series(64, g)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(past), nxt)
        loss.backward()
        return loss

    optimizer.step(closure)

with torch.no_grad():
    past, nxt = series(1000, g)
    print("RESULT", nn.functional.mse_loss(model(past), nxt).item())
