"""Learns to rank job adverts by comparing all pairs of a batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(241)


def adverts(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    merit = torch.tanh(x[:, 0] + x[:, 1] * x[:, 2]) + 0.6 * x[:, 3].abs() - 0.4 * x[:, 4]
    return TensorDataset(x, merit + 0.1 * torch.randn(n, generator=g))


class Scorer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width),
                                 nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


def all_pairs_loss(score, merit):
    """score (N, 1), merit (N,): row i, column j asks if advert i stands above advert j."""
    gap = score - score.squeeze(1)
    above = (merit.unsqueeze(1) > merit).float()
    weight = (merit.unsqueeze(1) - merit).abs()
    loss = F.binary_cross_entropy_with_logits(gap, above, reduction="none")
    return (weight * loss).sum() / weight.sum()


def endless(loader):
    stream = iter(loader)
    while True:
        try:
            yield next(stream)
        except StopIteration:
            stream = iter(loader)


@torch.no_grad()
def misordered(net, data):
    x, merit = data.tensors
    score = net(x).squeeze(1)
    upper = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), 1)
    wrong = (score.unsqueeze(1) > score) != (merit.unsqueeze(1) > merit)
    return wrong[upper].float().mean().item()


def main(steps=350):
    train, val = adverts(1500, 1), adverts(400, 2)
    stream = endless(DataLoader(train, batch_size=48, shuffle=True, drop_last=True))
    net = Scorer()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=steps)
    for step in range(steps):
        x, merit = next(stream)
        loss = all_pairs_loss(net(x), merit)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 70 == 69:
            print(f"step {step + 1} loss {loss.item():.4f} wrong {misordered(net, val):.4f}")
    return misordered(net, val)


if __name__ == "__main__":
    print("RESULT", main())
