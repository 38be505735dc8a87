import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        self.backup = {}

    @torch.no_grad()
    def update(self, model):
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.shadow[n].lerp_(p, 1.0 - self.decay)

    def apply_shadow(self, model):
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.backup[n] = p.data
                p.data.copy_(self.shadow[n])

    def restore(self, model):
        for n, p in model.named_parameters():
            if n in self.backup:
                p.data.copy_(self.backup[n])
        self.backup = {}


def make(n, g):
    x = torch.rand(n, 2, generator=g) * 4 - 2
    return TensorDataset(x, torch.sin(2 * x[:, 0]) * torch.cos(x[:, 1]))


@torch.no_grad()
def validate(model, ema, loader):
    ema.apply_shadow(model)
    model.eval()
    tot = sum(F.mse_loss(model(x).squeeze(-1), y, reduction="sum").item() for x, y in loader)
    model.train()
    ema.restore(model)
    return tot / len(loader.dataset)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(7)
    train = DataLoader(make(640, g), batch_size=64, shuffle=True)
    val = DataLoader(make(400, g), batch_size=400)
    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    ema = EMA(model, decay=0.98)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(30):
        for x, y in train:
            loss = F.mse_loss(model(x).squeeze(-1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(model)
        v = validate(model, ema, val)
        if epoch % 6 == 0:
            print(f"epoch {epoch} train {loss.item():.4f} val {v:.4f}")
    print("result:", v)


main()
