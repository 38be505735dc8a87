"""Contrastive pre-training of two encoders on noisy pairs."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)


class DualEncoder(nn.Module):
    def __init__(self, d_a=16, d_b=24, dim=16, init_temperature=0.07):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(d_a, 64), nn.ReLU(), nn.Linear(64, dim))
        self.b = nn.Sequential(nn.Linear(d_b, 64), nn.ReLU(), nn.Linear(64, dim))
        self.logit_scale = nn.Parameter(torch.tensor(1.0 / init_temperature))

    def forward(self, xa, xb):
        za = F.normalize(self.a(xa), dim=-1)
        zb = F.normalize(self.b(xb), dim=-1)
        scale = self.logit_scale.clamp(max=math.log(100.0)).exp()
        return scale * za @ zb.t()


def clip_loss(logits):
    t = torch.arange(logits.size(0))
    return 0.5 * (F.cross_entropy(logits, t) + F.cross_entropy(logits.t(), t))


Wa, Wb = torch.randn(6, 16), torch.randn(6, 24)


def pairs(n, noise=0.8):
    z = torch.randn(n, 6)
    return (z @ Wa + noise * torch.randn(n, 16)), (z @ Wb + noise * torch.randn(n, 24))


model = DualEncoder()
no_wd = [p for p in model.parameters() if p.ndim < 2]
wd = [p for p in model.parameters() if p.ndim >= 2]
opt = torch.optim.AdamW([{"params": wd, "weight_decay": 0.05}, {"params": no_wd, "weight_decay": 0.0}], lr=2e-3)

for step in range(300):
    loss = clip_loss(model(*pairs(64)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 75 == 0:
        print(f"step {step} loss {loss.item():.3f}")

with torch.no_grad():
    val = sum(clip_loss(model(*pairs(64))).item() for _ in range(10)) / 10
print("result:", val)
