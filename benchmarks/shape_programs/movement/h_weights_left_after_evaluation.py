"""Lookahead: every k steps the fast weights are replaced by the slow ones, on purpose."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(38)
x = torch.randn(900, 12)
y = (x[:, :3].sum(1) + x[:, 4].abs() > 0.5).long()


class Lookahead:
    def __init__(self, inner, k, alpha):
        self.inner, self.k, self.alpha, self.count = inner, k, alpha, 0
        self.fast = [p for g in inner.param_groups for p in g["params"]]
        self.slow = [p.detach().clone() for p in self.fast]

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.k == 0:
            for s, f in zip(self.slow, self.fast):
                s.lerp_(f, self.alpha)
                f.copy_(s)


net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 2))
inner = torch.optim.Adam(net.parameters(), lr=1.5e-2)
opt = Lookahead(inner, k=5, alpha=0.6)
for step in range(125):
    rows = torch.randint(0, 700, (64,))
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    inner.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 24:
        net.eval()
        with torch.no_grad():
            print(step + 1, nn.functional.cross_entropy(net(x[700:]), y[700:]).item())
        net.train()
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x[700:]), y[700:]).item())
