"""Transfer to a small set: head first, then the last block with a tiny rate."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def block(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU())


class Net(nn.Module):
    def __init__(self, n_out):
        super().__init__()
        self.blocks = nn.ModuleList([block(10, 96), block(96, 96)])
        self.head = nn.Linear(96, n_out)
        self.keep_statistics = False

    def train(self, mode=True):
        super().train(mode)
        if self.keep_statistics:
            self.blocks.eval()
        return self

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def signals(n, seed, shift=0.0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=gen) + shift
    parts = torch.stack([(x[:, 0] * x[:, 1] > 0), (x[:, 2] * x[:, 3] > 0), (x[:, 4] > 0.5)], 1)
    return x, parts.long()


def train_epoch(net, loader, optimizer):
    net.train()
    total = 0.0
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def error(net, x, y):
    net.eval()
    return (net(x).argmax(1) != y).float().mean().item()


def main():
    torch.manual_seed(7)
    x, parts = signals(5000, 1)
    code = (parts * torch.tensor([4, 2, 1])).sum(1)
    net = Net(8)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, code), batch_size=100, shuffle=True)
    for epoch in range(14):
        loss = train_epoch(net, loader, optimizer)
    print(f"pretrained, loss {loss:.4f}")

    x, parts = signals(200, 2, shift=0.1)
    loader = DataLoader(TensorDataset(x, parts[:, 0] + parts[:, 1]), batch_size=20, shuffle=True)
    xv, pv = signals(2000, 3, shift=0.1)
    net.head = nn.Linear(96, 3)
    net.keep_statistics = True
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    optimizer = torch.optim.Adam(net.head.parameters(), lr=5e-3)
    for epoch in range(12):
        loss = train_epoch(net, loader, optimizer)
    print(f"head only, loss {loss:.4f} error {error(net, xv, pv[:, 0] + pv[:, 1]):.4f}")

    net.blocks[1].requires_grad_(True)
    optimizer.add_param_group({"params": net.blocks[1].parameters(), "lr": 1e-4})
    for epoch in range(8):
        loss = train_epoch(net, loader, optimizer)
    print(f"last block too, loss {loss:.4f}")
    print("RESULT", error(net, xv, pv[:, 0] + pv[:, 1]))


if __name__ == "__main__":
    main()
