"""Trains a regression net whose parameters are updated while the backward pass runs."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(223)


class FusedSgd:
    """Momentum SGD that updates each parameter as soon as its gradient is complete.

    The gradient is freed at once, so at no time do all gradients exist together.
    """

    def __init__(self, net, lr, momentum=0.9, limit=1.0):
        self.lr, self.momentum, self.limit = lr, momentum, limit
        self.velocity = {p: torch.zeros_like(p) for p in net.parameters()}
        self.handles = [p.register_post_accumulate_grad_hook(self.update)
                        for p in net.parameters()]

    @torch.no_grad()
    def update(self, p):
        g = p.grad
        g = g * (self.limit / (g.norm() + 1e-9)).clamp(max=1.0)
        v = self.velocity[p].mul_(self.momentum).add_(g)
        p.add_(v, alpha=-self.lr)
        p.grad = None

    def close(self):
        for h in self.handles:
            h.remove()


def tides(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = 60 * torch.rand(n, 1, generator=g)
    wind = torch.randn(n, 2, generator=g)
    periods = torch.tensor([12.42, 12.0, 23.93])
    phase = 6.2832 * t / periods
    level = 1.2 * phase[:, :1].cos() + 0.5 * phase[:, 1:2].sin() + 0.3 * phase[:, 2:].cos()
    level = level + 0.3 * torch.tanh(wind[:, :1]) * wind[:, 1:]
    x = torch.cat([phase.sin(), phase.cos(), wind], dim=1)
    return x, level + 0.05 * torch.randn(n, 1, generator=g)


def build():
    return nn.Sequential(
        nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def validate(net, x, y):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x), y).item()


def main(epochs=12, batch=50):
    x, y = tides(1600, 1)
    val = tides(400, 2)
    net = build()
    fused = FusedSgd(net, lr=0.05)
    for epoch in range(epochs):
        fused.lr = 0.05 * (1 - epoch / epochs)
        for pick in torch.randperm(len(x)).split(batch):
            loss = nn.functional.mse_loss(net(x[pick]), y[pick])
            loss.backward()
        print(f"epoch {epoch} loss {loss.item():.4f} val {validate(net, *val):.4f}")
    fused.close()
    return validate(net, *val)


if __name__ == "__main__":
    print("RESULT", main())
