import copy
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(30)


class Ema:
    def __init__(self, model, decay=0.9999):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval()
        for p in self.shadow.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


proj = torch.randn(24, 6)


def draw(n):
    x = torch.randn(n, 24)
    return x, (x.tanh() @ proj).argmax(1)


def main():
    x, y = draw(4000)
    xv, yv = draw(1000)
    model = nn.Sequential(nn.Linear(24, 96), nn.SiLU(), nn.LayerNorm(96), nn.Linear(96, 6))
    ema = Ema(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(12):
        for idx in torch.randperm(len(x)).split(64):
            loss = loss_fn(model(x[idx]), y[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            ema.update(model)
        print(f"epoch {epoch} train {loss.item():.4f}")
    with torch.no_grad():
        print("RESULT", loss_fn(ema.shadow(xv), yv).item())


main()
