"""Learns soil moisture and soil temperature together with balanced task gradients."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(67)


class Fields:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 7, generator=g)
        a, b, c = self.x[:, 0], self.x[:, 1], self.x[:, 2]
        self.moisture = torch.sin(1.5 * a) * b + 0.5 * c
        self.temperature = 4.0 * (a - b).abs() + 2.0 * torch.cos(c)
        self.moisture = self.moisture + 0.1 * torch.randn(n, generator=g)
        self.temperature = self.temperature + 0.3 * torch.randn(n, generator=g)

    def loader(self, size):
        for i in torch.randperm(len(self.x)).split(size):
            yield self.x[i], self.moisture[i], self.temperature[i]


class SharedNet(nn.Module):
    def __init__(self, width=72):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(7, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.moist = nn.Linear(width, 1)
        self.temp = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.moist(h).squeeze(-1), self.temp(h).squeeze(-1)


def norm_of(grads):
    return torch.sqrt(sum(g.pow(2).sum() for g in grads)) + 1e-12


class BalancedStep:
    """Gives both tasks a gradient of the same length."""

    def __init__(self, net, lr):
        self.net = net
        self.params = list(net.parameters())
        self.opt = torch.optim.Adam(self.params, lr=lr)

    def collect(self, loss):
        self.opt.zero_grad(set_to_none=False)
        loss.backward(retain_graph=True)
        return [p.grad for p in self.params]

    def __call__(self, x, moisture, temperature):
        m, t = self.net(x)
        losses = ((m - moisture).pow(2).mean(), (t - temperature).pow(2).mean())
        per_task = [self.collect(loss) for loss in losses]
        lengths = [norm_of(g) for g in per_task]
        target = sum(lengths) / len(lengths)
        merged = [sum(target / n * g for n, g in zip(lengths, parts))
                  for parts in zip(*per_task)]
        for p, g in zip(self.params, merged):
            p.grad.copy_(g)
        self.opt.step()
        return [loss.item() for loss in losses]


@torch.no_grad()
def score(net, data):
    m, t = net(data.x)
    moist = (m - data.moisture).pow(2).mean() / data.moisture.var()
    temp = (t - data.temperature).pow(2).mean() / data.temperature.var()
    return moist.item(), temp.item()


train, val = Fields(2000, 1), Fields(500, 2)
for p in (net := SharedNet()).parameters():
    p.grad = torch.zeros_like(p)
step = BalancedStep(net, lr=3e-3)
for epoch in range(14):
    for batch in train.loader(80):
        losses = step(*batch)
    moist, temp = score(net, val)
    print(f"epoch {epoch} losses {losses[0]:.3f} {losses[1]:.3f} val {moist:.4f} {temp:.4f}")
print("RESULT", sum(score(net, val)) / 2)
