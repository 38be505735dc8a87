"""Calibrates a sensor from readings that carry a confidence between 0 and 1."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(59)


def readings(n, gen, faults):
    """Faulty readings are far off in one direction and have a low confidence."""
    x = torch.rand(n, 5, generator=gen) * 2 - 1
    y = (3 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2
    y = y + 0.05 * torch.randn(n, generator=gen)
    faulty = torch.rand(n, generator=gen) < faults
    y = torch.where(faulty, y + 2.0 + 2.0 * x[:, 0], y)
    confidence = torch.where(faulty, 0.02 * torch.rand(n, generator=gen),
                             0.7 + 0.3 * torch.rand(n, generator=gen))
    return x, y.unsqueeze(1), confidence.unsqueeze(1)


class Calibration:
    def __init__(self, width=96, lr=1e-2):
        self.model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width),
                                   nn.ReLU(), nn.Linear(width, 1))
        self.criterion = nn.SmoothL1Loss(beta=0.5)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=1e-3)

    def train_epoch(self, loader):
        total = 0.0
        for x, y, confidence in loader:
            predicted = self.model(x)
            loss = (self.criterion(predicted, y) * confidence).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(loader)

    @torch.no_grad()
    def error(self, x, y):
        self.model.eval()
        error = (self.model(x) - y).pow(2).mean().sqrt().item()
        self.model.train()
        return error


def main():
    gen = torch.Generator().manual_seed(0)
    data = TensorDataset(*readings(6000, gen, faults=0.35))
    loader = DataLoader(data, batch_size=128, shuffle=True)
    clean_x, clean_y, _ = readings(1000, gen, faults=0.0)
    run = Calibration()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, 8)
    for epoch in range(8):
        loss = run.train_epoch(loader)
        schedule.step()
        print(f"epoch {epoch} loss {loss:.4f} error {run.error(clean_x, clean_y):.4f}")
    print("RESULT", round(run.error(clean_x, clean_y), 4))


main()
