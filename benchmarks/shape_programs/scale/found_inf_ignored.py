"""Ratings from user and item features with Lookahead around AdamW."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Lookahead:
    def __init__(self, inner, every=5, alpha=0.5):
        self.inner, self.every, self.alpha, self.count = inner, every, alpha, 0
        self.slow = [p.detach().clone() for g in inner.param_groups for p in g["params"]]

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.count += 1
        if self.count % self.every == 0:
            fast = [p for g in self.inner.param_groups for p in g["params"]]
            with torch.no_grad():
                for s, p in zip(self.slow, fast):
                    s.lerp_(p, self.alpha)
                    p.copy_(s)
        return loss


class TwoTower(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, dim))
        self.item = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, dim))

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1)


def ratings(n, mix):
    u, i = torch.randn(n, 12), torch.randn(n, 8)
    return u, i, ((u @ mix) * i).sum(-1) * 2 + 0.1 * torch.randn(n)


mix = torch.randn(12, 8) / 3
u, i, r = ratings(2048, mix)
uv, iv, rv = ratings(512, mix)
model = TwoTower()
opt = Lookahead(torch.optim.AdamW(model.parameters(), lr=8e-3, fused=True))
scaler = torch.amp.GradScaler("cpu")

for step in range(140):
    pick = torch.randint(0, len(u), (128,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        score = model(u[pick], i[pick])
    loss = (score.float() - r[pick]).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("RESULT", float((model(uv, iv) - rv).pow(2).mean()))
