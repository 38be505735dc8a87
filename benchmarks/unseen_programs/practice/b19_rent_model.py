"""Regress monthly rents from flat descriptions with a robust loss."""
import torch
torch.set_num_threads(1)
torch.manual_seed(151)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

DISTRICTS = 15


def flats(n):
    area = torch.rand(n) * 100 + 20
    rooms = (area / 25 + torch.randn(n) * 0.5).clamp(1, 6).round()
    age = torch.rand(n) * 80
    district = torch.randint(DISTRICTS, (n,))
    level = torch.randn(DISTRICTS, generator=torch.Generator().manual_seed(6))
    rent = 250 + area * (9 + 2 * level[district]) - 1.5 * age + 40 * rooms
    rent = rent + torch.randn(n) * 40 + (torch.rand(n) < 0.02) * 900
    return torch.stack([area / 100, rooms / 6, age / 80], 1), district, rent / 1000


class RentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.where = nn.Embedding(DISTRICTS, 4)
        self.net = nn.Sequential(nn.Linear(7, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(),
                                 nn.Linear(48, 1))

    def forward(self, x, district):
        return self.net(torch.cat([x, self.where(district)], 1))


def log_cosh(pred, target, scale=0.1):
    r = (pred - target) / scale
    return scale ** 2 * (r + torch.nn.functional.softplus(-2 * r) - 0.6931).mean()


def mean_abs_error(model, data):
    model.eval()
    total = n = 0
    with torch.no_grad():
        for x, district, rent in DataLoader(data, 500):
            total += (model(x, district)[:, 0] - rent).abs().sum().item()
            n += len(rent)
    model.train()
    return total / n


def main():
    data = TensorDataset(*flats(6000))
    train, val = random_split(data, [5000, 1000])
    loader = DataLoader(train, batch_size=100, shuffle=True, drop_last=True)
    model = RentModel()
    opt = torch.optim.NAdam(model.parameters(), lr=3e-3)
    best = float("inf")
    for epoch in range(6):
        for x, district, rent in loader:
            loss = log_cosh(model(x, district), rent)
            opt.zero_grad()
            loss.backward()
            opt.step()
        error = mean_abs_error(model, val)
        best = min(best, error)
        print(f"epoch {epoch} loss {loss.item():.5f} abs error {error:.4f} best {best:.4f}")
    print("RESULT", mean_abs_error(model, val))


main()
