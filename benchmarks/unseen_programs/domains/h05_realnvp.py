import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(19)


class ActNorm(nn.Module):
    """Starts with the statistics of the first batch it sees, is an ordinary affine layer afterwards."""

    def __init__(self, d):
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def forward(self, x):
        if not self.seen:
            with torch.no_grad():
                self.shift.copy_(x.mean(0))
                self.log_scale.copy_(-x.std(0).clamp(min=1e-4).log())
                self.seen.fill_(True)
        return (x - self.shift) * self.log_scale.exp(), self.log_scale.sum().expand(len(x))

    def inverse(self, z):
        return z * (-self.log_scale).exp() + self.shift


class Coupling(nn.Module):
    def __init__(self, d, hidden=64):
        super().__init__()
        self.h = d // 2
        self.net = nn.Sequential(nn.Linear(self.h, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 2 * (d - self.h)))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def params(self, a):
        s, t = self.net(a).chunk(2, 1)
        return 1.5 * torch.tanh(s), t

    def forward(self, x):
        a, b = x[:, :self.h], x[:, self.h:]
        s, t = self.params(a)
        return torch.cat([b * s.exp() + t, a], 1), s.sum(1)

    def inverse(self, z):
        k = z.shape[1] - self.h
        b, a = z[:, :k], z[:, k:]
        s, t = self.params(a)
        return torch.cat([a, (b - t) * (-s).exp()], 1)


class Flow(nn.Module):
    def __init__(self, d=4, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(m for _ in range(depth) for m in (ActNorm(d), Coupling(d)))

    def log_prob(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return -0.5 * (x ** 2 + math.log(2 * math.pi)).sum(1) + logdet

    @torch.no_grad()
    def sample(self, n, d=4):
        z = torch.randn(n, d)
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


def readings(n):
    a = torch.randn(n, 2) * 0.2
    b = torch.stack([a[:, 0] ** 2 * 4, torch.sin(6 * a[:, 1]) * 0.3], 1) + 0.01 * torch.randn(n, 2)
    return torch.cat([a, b], 1)


train, val = readings(6000), readings(1000)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
for epoch in range(25):
    flow.train()
    for idx in torch.randperm(len(train)).split(200):
        loss = -flow.log_prob(train[idx]).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
        opt.step()
    sched.step()
    flow.eval()
    with torch.no_grad():
        nll = -flow.log_prob(val).mean().item()
    if epoch % 5 == 4:
        print(f"epoch {epoch} train nll {loss.item():.3f} val nll {nll:.3f} sample std {flow.sample(500).std(0).tolist()}")
print("RESULT", nll)
