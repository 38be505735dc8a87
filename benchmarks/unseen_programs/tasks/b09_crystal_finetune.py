"""Fine-tunes a property model of crystals on a small set of measured band gaps."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.set_num_threads(1)
torch.manual_seed(3)


@dataclass
class Stage:
    name: str
    epochs: int
    lr: float
    batch_size: int = 128


DESCRIPTORS = 14
MIX = torch.randn(DESCRIPTORS, 3) / DESCRIPTORS ** 0.5


def crystals(n, measured, noise):
    x = torch.randn(n, DESCRIPTORS)
    z = x @ MIX
    gap = 1.5 + torch.tanh(2 * z[:, 0]) + 0.8 * z[:, 1].abs()
    if measured:
        gap = 1.35 * gap + 0.7 + 0.6 * z[:, 2]
    return TensorDataset(x, (gap + noise * torch.randn(n)).unsqueeze(-1))


class GapModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(DESCRIPTORS, width), nn.SiLU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.trunk(x))


class Fit:
    def __init__(self, model):
        self.model = model
        self.loss = nn.MSELoss()

    def loader(self, data, stage):
        return DataLoader(data, batch_size=stage.batch_size, shuffle=True, drop_last=True)

    def run(self, stage, train, val):
        loader = self.loader(train, stage)
        opt = torch.optim.AdamW(self.model.parameters(), lr=stage.lr, weight_decay=1e-3)
        for epoch in range(stage.epochs):
            self.model.train()
            running, seen = 0.0, 0
            for x, y in loader:
                loss = self.loss(self.model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                running += loss.item() * len(x)
                seen += len(x)
            if epoch % 10 == 9:
                print(f"{stage.name} epoch {epoch + 1} train {running / max(seen, 1):.4f} "
                      f"val {self.rmse(val):.4f}")
        return self.rmse(val)

    @torch.no_grad()
    def rmse(self, data):
        self.model.eval()
        errors = [(self.model(x) - y).pow(2) for x, y in DataLoader(data, batch_size=256)]
        return torch.cat(errors).mean().sqrt().item()


def main():
    computed = crystals(2048, measured=False, noise=0.02)
    measured = crystals(420, measured=True, noise=0.08)
    few, held_out = random_split(measured, [112, 308])
    fit = Fit(GapModel())
    fit.run(Stage("computed", epochs=20, lr=3e-3), computed, held_out)
    result = fit.run(Stage("measured", epochs=60, lr=1e-3), few, held_out)
    print("RESULT", result)


if __name__ == "__main__":
    main()
