"""Dose response with an uncertainty: dropout stays on when predicting and 40 draws are averaged."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


class DrawnDropout(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return F.dropout(x, self.p, training=True)


def response(n, gen):
    dose = torch.rand(n, 1, generator=gen) * 6 - 3
    age = torch.randn(n, 3, generator=gen)
    clean = 2 * torch.sigmoid(2 * dose + age[:, :1]) + 0.3 * age[:, 1:2]
    return torch.cat([dose, age], 1), clean + 0.25 * torch.randn(n, 1, generator=gen), clean


def draws(net, x, count=40):
    with torch.no_grad():
        out = torch.stack([net(x) for _ in range(count)])
    return out.mean(0), out.std(0)


def main():
    torch.manual_seed(64)
    gen = torch.Generator().manual_seed(64)
    x, y, _ = response(1500, gen)
    xt, _, clean = response(1000, gen)
    net = nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), DrawnDropout(0.1),
        nn.Linear(128, 128), nn.ReLU(), DrawnDropout(0.1), nn.Linear(128, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 25)
    for epoch in range(25):
        for idx in torch.randperm(len(x)).split(50):
            loss = F.mse_loss(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        if epoch % 5 == 0:
            mean, spread = draws(net, xt)
            print(f"epoch {epoch} mse {F.mse_loss(mean, clean).item():.4f} spread {spread.mean().item():.3f}")
    net.eval()
    mean, spread = draws(net, xt)
    print("RESULT", F.mse_loss(mean, clean).item())


main()
