"""Phase classification of simulated pendulum states with a hand-written momentum optimizer."""
import torch
from torch import nn
from torch.optim import Optimizer

torch.set_num_threads(1)
torch.manual_seed(16)

angle = (torch.rand(1000) * 2 - 1) * 3.1
speed = torch.randn(1000) * 1.5
energy = 0.5 * speed ** 2 - torch.cos(angle)
phase = (energy > 1.0).long() + ((angle * speed) > 0).long()
state = torch.stack([angle.sin(), angle.cos(), speed], 1)


class HeavyBall(Optimizer):
    def __init__(self, params, lr, momentum):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("velocity", torch.zeros_like(p))
                v.mul_(group["momentum"]).sub_(p.grad, alpha=group["lr"])
                p.sub_(v)
        return loss


net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
opt = HeavyBall(net.parameters(), lr=0.1, momentum=0.9)
for step in range(120):
    rows = torch.randint(0, 800, (64,))

    def closure():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(state[rows]), phase[rows])
        loss.backward()
        return loss

    loss = opt.step(closure)
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(state[800:]), phase[800:]).item())
