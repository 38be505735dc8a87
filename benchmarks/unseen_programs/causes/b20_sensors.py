"""Room occupancy from 20 sensors. In the field sensors fail, so training blanks some at random."""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
SENSORS = 20


class Rooms(Dataset):
    def __init__(self, n, seed, blank=0.0):
        g = torch.Generator().manual_seed(seed)
        people = torch.rand(n, 1, generator=g) * 4
        gain = torch.linspace(0.2, 1.2, SENSORS)
        noise = torch.linspace(0.35, 0.12, SENSORS)
        self.x = 1.5 + people * gain + noise * torch.randn(n, SENSORS, generator=g)
        self.y = people.squeeze(1)
        self.blank = blank

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.blank > 0:
            x = x * (torch.rand(SENSORS) >= self.blank)
        return x, self.y[i]


def loaders(data):
    train, valid = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    valid.dataset.blank = 0.0
    return DataLoader(train, 64, shuffle=True), DataLoader(valid, 256)


def mean_loss(net, loader):
    net.eval()
    with torch.no_grad():
        total = sum(F.mse_loss(net(x), y, reduction="sum").item() for x, y in loader)
    net.train()
    return total / len(loader.dataset)


class Occupancy(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(SENSORS, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.a(x))))).squeeze(-1)


def main():
    torch.manual_seed(30)
    train, valid = loaders(Rooms(4000, 1, blank=0.25))
    field = DataLoader(Rooms(1500, 2, blank=0.25), 256)
    net = Occupancy()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(15):
        for x, y in train:
            loss = F.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch:2d} train {loss.item():.4f} valid {mean_loss(net, valid):.4f}")
    torch.manual_seed(31)
    print("RESULT", mean_loss(net, field))


if __name__ == "__main__":
    main()
