"""Free energy surface of a small molecule from sampled torsion angles."""
import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)


def sample(n):
    a = (torch.rand(n, 2) * 2 - 1) * torch.pi
    kj = 25 * torch.cos(a[:, :1]) + 18 * torch.cos(2 * a[:, 1:] + 0.5) + 12 * torch.sin(a.sum(1, keepdim=True))
    feats = torch.cat([torch.sin(a), torch.cos(a), torch.sin(2 * a), torch.cos(2 * a)], 1)
    return feats, kj + 40


class Surface(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        self.register_buffer("spread", torch.tensor(30.0))

    def forward(self, f):
        return self.net(f).float() * self.spread


def squared_error(pred, target):
    return ((pred - target) ** 2).sum()


def gradients(model, feats, target):
    with torch.autocast("cpu", torch.float16):
        pred = model(feats)
    total = squared_error(pred, target)
    grads = torch.autograd.grad(total, list(model.parameters()))
    return total.item() / len(feats), [g / len(feats) for g in grads]


f, e = sample(2048)
fv, ev = sample(512)
model = Surface()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)

for step in range(100):
    pick = torch.randperm(len(f))[:512]
    loss, grads = gradients(model, f[pick], e[pick])
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    opt.step()

with torch.no_grad():
    print("RESULT", float((model(fv) - ev).abs().mean()))
