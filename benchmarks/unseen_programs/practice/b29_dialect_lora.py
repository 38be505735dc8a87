"""Adapt a pretrained acoustic scorer to a dialect with low-rank updates."""
import torch
torch.set_num_threads(1)
torch.manual_seed(250)
from torch import nn
import torch.nn.functional as F

FEATS, PHONES = 30, 12


class AdaptedLinear(nn.Module):
    """Linear layer with a low-rank update, folded into the weight for fast inference."""

    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)
        self.bias = nn.Parameter(base.bias.detach().clone(), requires_grad=False)
        out, inp = self.weight.shape
        self.down = nn.Parameter(torch.randn(rank, inp) / inp ** 0.5)
        self.up = nn.Parameter(torch.zeros(out, rank))
        self.scale = alpha / rank

    def train(self, mode=True):
        super().train(mode)
        if not mode:
            self.weight.data += self.scale * self.up.data @ self.down.data
        return self

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        if self.training:
            y = y + self.scale * F.linear(F.linear(x, self.down), self.up)
        return y


def speech(n, means, seed):
    g = torch.Generator().manual_seed(seed)
    phone = torch.randint(PHONES, (n,), generator=g)
    x = means[phone] + 0.9 * torch.randn(n, FEATS, generator=g)
    return x, phone


def scorer():
    return nn.Sequential(nn.Linear(FEATS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, PHONES))


def fit(model, data, steps, lr, val=None, every=20):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr)
    model.train()
    for step in range(steps):
        rows = torch.randint(len(data[1]), (64,))
        loss = F.cross_entropy(model(data[0][rows]), data[1][rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if val is not None and step % every == every - 1:
            print(f"step {step + 1} train {loss.item():.4f} val {evaluate(model, val):.4f}")
            model.train()


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        return F.cross_entropy(model(data[0]), data[1]).item()


standard = torch.randn(PHONES, FEATS) * 0.8
dialect = standard.roll(1, 1) * 0.6 + 0.5 * torch.randn(PHONES, FEATS)
model = scorer()
fit(model, speech(4000, standard, 1), 150, 3e-3)
dialect_val = speech(1000, dialect, 3)
print(f"before adaptation {evaluate(model, dialect_val):.4f}")
for i in (0, 2, 4):
    model[i] = AdaptedLinear(model[i])
fit(model, speech(800, dialect, 2), 200, 2e-3, dialect_val)
print("RESULT", evaluate(model, dialect_val))
