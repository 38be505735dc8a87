import io

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(40)
torch.set_num_threads(1)


def site(seed, rotate):
    """Two clinics measure the same quantities with differently mounted devices."""
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(9)))[0]
    mix = torch.eye(10) if not rotate else basis

    def draw(n):
        z = torch.randn(n, 10, generator=g)
        score = z[:, 0] * z[:, 1] + z[:, 2].square() - z[:, 3].square() + z[:, 4]
        label = torch.bucketize(score, torch.tensor([-1.2, 0.0, 1.2]))
        return z @ mix, label

    return draw


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.adapter = nn.Linear(10, 10)
        self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        return self.head(self.trunk(self.adapter(x)))


def build(lr):
    model = Model()
    opt = torch.optim.Adam([
        {"params": model.trunk.parameters()},
        {"params": model.head.parameters()},
        {"params": model.adapter.parameters()},
    ], lr=lr)
    return model, opt


def fit(model, opt, draw, steps, scheduler=None, tag=""):
    for step in range(1, steps + 1):
        x, y = draw(64)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if scheduler is not None:
            scheduler.step()
        if step % 200 == 0:
            print(f"{tag} step {step} loss {loss.item():.4f}")


def error(model, draw):
    x, y = draw(3000)
    with torch.no_grad():
        return (model(x).argmax(1) != y).float().mean().item()


def pretrain(file):
    draw = site(1, rotate=False)
    model, opt = build(lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1200, eta_min=1e-6)
    fit(model, opt, draw, 1200, sched, "site A")
    print("site A error", error(model, draw))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)


def adapt(file):
    draw = site(2, rotate=True)
    saved = torch.load(file)
    model, opt = build(lr=1e-3)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    fit(model, opt, draw, 1200, tag="site B")
    return error(model, draw)


storage = io.BytesIO()
pretrain(storage)
storage.seek(0)
print("RESULT", adapt(storage))
