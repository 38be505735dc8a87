"""One model for four sites: every update sees one batch of each site, their gradients added up."""
import torch
from torch import nn

torch.manual_seed(22)
torch.set_num_threads(1)
SITES = 4


def site(k, n):
    x = torch.randn(n, 6)
    y = torch.sin(x[:, :1] + k) + (k - 1.5) * x[:, 1:2] * 0.5
    tag = nn.functional.one_hot(torch.full((n,), k), SITES).float()
    return torch.cat([x, tag], 1), y


class Accumulator:
    def __init__(self, params, every):
        self.params, self.every, self.count = list(params), every, 0
        self.opt = torch.optim.Adam(self.params, lr=8e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)

    def add(self, loss):
        self.scaler.scale(loss / self.every).backward()
        self.scaler.unscale_(self.opt)
        self.count += 1
        if self.count == self.every:
            nn.utils.clip_grad_norm_(self.params, 5.0)
            self.scaler.step(self.opt)
            self.opt.zero_grad()
            self.count = 0
        self.scaler.update()


train = [site(k, 512) for k in range(SITES)]
test = [site(k, 256) for k in range(SITES)]
net = nn.Sequential(nn.Linear(6 + SITES, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
acc = Accumulator(net.parameters(), SITES)
for step in range(100):
    for x, y in train:
        pick = torch.randint(0, len(x), (48,))
        with torch.autocast("cpu", torch.float16):
            out = net(x[pick])
        acc.add((out.float() - y[pick]).pow(2).mean())

with torch.no_grad():
    errors = [float((net(x) - y).pow(2).mean()) for x, y in test]
print(errors)
print("RESULT", sum(errors) / SITES)
