"""Classifies galaxy cut-outs with large batches and a layer-wise adaptive rate."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(157)


class Lars(torch.optim.Optimizer):
    """Momentum SGD whose rate is scaled layer by layer with |w| / |g|."""

    def __init__(self, params, lr, momentum=0.9, trust=0.02, weight_decay=0.0):
        defaults = dict(lr=lr, momentum=momentum, trust=trust, weight_decay=weight_decay)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad + group["weight_decay"] * p
                if p.ndim > 1:
                    ratio = group["trust"] * p.norm() / g.norm()
                    ratio = torch.where(p.norm() > 0, ratio, torch.ones_like(ratio))
                    g = g * ratio
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(g)
                p.sub_(group["lr"] * buf)


def cutouts(n, gen, side=18):
    kind = torch.randint(0, 3, (n,), generator=gen)
    axis = torch.linspace(-1, 1, side)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    turn = 3.14 * torch.rand(n, 1, 1, generator=gen)
    u = turn.cos() * xx + turn.sin() * yy
    v = -turn.sin() * xx + turn.cos() * yy
    flat = torch.tensor([1.0, 2.2, 4.5])[kind].view(n, 1, 1)
    light = 3 * torch.exp(-4 * (u ** 2 + (flat * v) ** 2))
    return (light + 0.4 * torch.randn(n, side, side, generator=gen)).unsqueeze(1), kind


class GalaxyNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2), nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GELU())
        self.hidden = nn.Linear(2 * width * 25, 64)
        self.head = nn.Linear(64, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(F.gelu(self.hidden(self.conv(x).flatten(1))))


def warmup(step, total, peak, ramp=10):
    if step < ramp:
        return peak * (step + 1) / ramp
    return peak * (1 - (step - ramp) / (total - ramp))


def run(epochs=12, batch=200, peak=1.0):
    gen = torch.Generator().manual_seed(40)
    x, y = cutouts(2000, gen)
    vx, vy = cutouts(500, gen)
    net = GalaxyNet()
    opt = Lars(net.parameters(), lr=peak)
    total, step = epochs * len(x) // batch, 0
    for epoch in range(epochs):
        for pick in torch.randperm(len(x), generator=gen).split(batch):
            for group in opt.param_groups:
                group["lr"] = warmup(step, total, peak)
            loss = F.cross_entropy(net(x[pick]), y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        with torch.no_grad():
            val = F.cross_entropy(net(vx), vy).item()
        print(f"epoch {epoch} step {step} loss {loss.item():.4f} val {val:.4f}")
    return val


print("RESULT", run())
