"""Learns travel-time residuals of seismic stations from analyst picks of mixed quality."""
import argparse

import torch

torch.set_num_threads(1)
torch.manual_seed(11)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--delta", type=float, default=1.0)
    return ap.parse_args([])


def travel_residual(loc):
    east, north, depth, mag = loc.unbind(-1)
    return torch.sin(2.1 * east) * north + 0.6 * depth ** 2 - 0.4 * mag * east


def make_catalogue(n, graded=True):
    loc = torch.rand(n, 4) * 2 - 1
    clean = travel_residual(loc)
    if not graded:
        return loc, clean + 0.05 * torch.randn(n), torch.zeros(n, dtype=torch.long)
    grade = torch.multinomial(torch.tensor([0.35, 0.15, 0.5]), n, replacement=True)
    sigma = torch.tensor([0.05, 0.2, 0.6])[grade]
    late = torch.tensor([0.0, 0.1, 1.4])[grade]
    return loc, clean + late + sigma * torch.randn(n), grade


class ResidualNet(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.SiLU(),
            torch.nn.Linear(width, width), torch.nn.SiLU(),
        )
        self.out = torch.nn.Linear(width, 1)

    def forward(self, loc):
        return self.out(self.body(loc)).squeeze(-1)


def huber(err, delta):
    size = err.abs()
    return torch.where(size < delta, 0.5 * err ** 2, delta * (size - 0.5 * delta))


def grade_to_weight(grade):
    table = torch.tensor([1.0, 0.3, 0.01])
    return table[grade]


@torch.no_grad()
def rms(net, loc, target):
    net.eval()
    value = (net(loc) - target).pow(2).mean().sqrt().item()
    net.train()
    return value


def main():
    args = parse()
    loc, target, grade = make_catalogue(2400)
    val_loc, val_target, _ = make_catalogue(600, graded=False)
    data = torch.utils.data.TensorDataset(loc, target, grade)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True)
    net = ResidualNet()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4)
    steps = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
    for epoch in range(args.epochs):
        total = 0.0
        for batch_loc, batch_target, batch_grade in loader:
            weight = grade_to_weight(batch_grade)
            misfit = huber(net(batch_loc) - batch_target, args.delta)
            loss = misfit.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        print(f"epoch {epoch:2d} misfit {total / len(loader):.4f} "
              f"rms {rms(net, val_loc, val_target):.4f}")
    print("RESULT", rms(net, val_loc, val_target))


if __name__ == "__main__":
    main()
