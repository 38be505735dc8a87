"""Pendulum surrogate: an fp16 network with wide master weights, a fixed scale and a bound on the step."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SCALE = 1024.0


def pendulum(n, g, dt=0.5):
    angle = 3 * torch.randn(n, generator=g)
    speed = torch.randn(n, generator=g)
    state = torch.stack([angle.sin(), angle.cos(), speed], 1)
    return state, (2 * speed - dt * 9.81 * angle.sin())[:, None]


class Stepper:
    def __init__(self, net, lr=3e-3, bound=1.0):
        self.net = net
        self.masters = [p.detach().float().requires_grad_() for p in net.parameters()]
        self.inner = torch.optim.Adam(self.masters, lr=lr)
        self.bound = bound

    def size(self, grads):
        return torch.stack([(g * g).sum() for g in grads]).sum().sqrt()

    def step(self):
        grads = [p.grad for p in self.net.parameters()]
        norm = self.size(grads) / SCALE
        shrink = (self.bound / (norm + 1e-6)).clamp(max=1.0).float()
        for m, g in zip(self.masters, grads):
            m.grad = g.float() / SCALE * shrink
        self.inner.step()
        with torch.no_grad():
            for p, m in zip(self.net.parameters(), self.masters):
                p.copy_(m)
                p.grad = None


g = torch.Generator().manual_seed(7)
net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1)).half()
stepper = Stepper(net)
for step in range(150):
    state, target = pendulum(32, g)
    error = net(state.half()).float() - target
    (error.pow(2).mean() * SCALE).backward()
    stepper.step()

with torch.no_grad():
    state, target = pendulum(500, g)
    print("RESULT", (net(state.half()).float() - target).pow(2).mean().item())
