import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(14)
torch.set_num_threads(1)


class Plant(Dataset):
    """Readings in raw units: temperatures, pressures and currents with their own offsets."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        offset = torch.tensor([20.0, 5.0, 12.0, 3.0, 40.0, 8.0, 1.0, 15.0])
        spread = torch.tensor([2.0, 0.5, 1.5, 0.4, 3.0, 1.0, 0.2, 1.0])
        z = torch.randn(n, 8, generator=g)
        self.raw = offset + spread * z
        self.label = ((z[:, 0] * z[:, 1] + z[:, 2] - z[:, 3].abs() + z[:, 4] * 0.5 + 0.6) > 0).long()

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        return self.raw[i], self.label[i]


class InputStats(nn.Module):
    """Standardises by the totals over everything seen in training."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(width))
        self.register_buffer("total_sq", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.count += len(x)
            self.total += x.sum(dim=0)
            self.total_sq += x.square().sum(dim=0)
        mean = self.total / self.count
        var = self.total_sq / self.count - mean.square()
        return (x - mean) / var.clamp(min=1e-2).sqrt()


class FaultDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stats = InputStats(8)
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x):
        z = self.stats(x)
        return self.body(z.to(self.body[0].weight.dtype)).float()


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def run(epochs=8):
    train = DataLoader(Plant(6400, 1), batch_size=64, shuffle=True)
    val = DataLoader(Plant(2000, 2), batch_size=500)
    model = FaultDetector()
    model.bfloat16()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        acc = accuracy(model, val)
        print("epoch", epoch, "loss", round(loss.item(), 3), "accuracy", round(acc, 4))
    return 1 - acc


print("RESULT", run())
