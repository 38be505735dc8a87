"""Predicts the ninth decile of delivery times with a pinball loss."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(149)


class Deliveries(Dataset):
    columns = ("distance", "parcels", "hour", "rain", "floor")

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.table = torch.rand(n, len(self.columns), generator=g)
        distance, parcels, hour, rain, floor = self.table.T
        mean = 0.5 + 3.0 * distance + 0.8 * parcels * floor
        mean = mean + 1.2 * torch.exp(-30 * (hour - 0.7) ** 2)
        spread = 0.15 + 0.6 * rain * distance
        wait = torch.empty(n).exponential_(1.0, generator=g)
        self.hours = mean + spread * wait

    def __len__(self):
        return len(self.hours)

    def __getitem__(self, i):
        return self.table[i], self.hours[i]


class QuantileNet(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(inputs, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 1)

    def forward(self, table):
        h = table * 2 - 1
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


def pinball(pred, hours, level):
    late = hours - pred
    return torch.maximum(level * late, (level - 1) * late).mean()


def train(args):
    loader = DataLoader(Deliveries(2000, 1), batch_size=args.batch, shuffle=True)
    val = Deliveries(600, 2)
    net = QuantileNet(len(Deliveries.columns), args.width)
    opt = torch.optim.NAdam(net.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        for table, hours in loader:
            pred = net(table)
            loss = pinball(pred, hours, args.level)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch} train {loss.item():.4f} val {evaluate(net, val, args):.4f}")
    return evaluate(net, val, args)


@torch.no_grad()
def evaluate(net, val, args):
    losses = []
    for table, hours in DataLoader(val, batch_size=1):
        losses.append(pinball(net(table), hours, args.level))
    return torch.stack(losses).mean().item()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=15)
    ap.add_argument("--batch", type=int, default=100)
    ap.add_argument("--width", type=int, default=48)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--level", type=float, default=0.9)
    print("RESULT", train(ap.parse_args([])))
