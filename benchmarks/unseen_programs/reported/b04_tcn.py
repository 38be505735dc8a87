"""Temporal convolutional network for next-value prediction of coupled oscillations."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class CausalBlock(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)
        self.skip = nn.Conv1d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return F.relu(self.conv(F.pad(x, (self.pad, 0)))) + self.skip(x)


class TCN(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.blocks = nn.Sequential(
            CausalBlock(2, channels, 1), CausalBlock(channels, channels, 2), CausalBlock(channels, channels, 4)
        )
        self.readout = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        return self.readout(self.blocks(x))[:, 0, -1]


def add_weight_norm(module):
    for child in module.modules():
        if isinstance(child, nn.Conv1d):
            weight_norm(child)
    return module


def series(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1, dtype=torch.float32)
    f1 = 0.15 + 0.35 * torch.rand(n, 1, generator=g)
    f2 = 0.5 + 0.5 * torch.rand(n, 1, generator=g)
    ph = 6.28 * torch.rand(n, 2, generator=g)
    a, b = torch.sin(f1 * t + ph[:, :1]), torch.sin(f2 * t + ph[:, 1:])
    x = torch.stack([a * b, b], 1) + 0.02 * torch.randn(n, 2, length + 1, generator=g)
    return x[:, :, :-1], (a * b)[:, -1]


class Trainer:
    def __init__(self, model, lr, epochs):
        self.model, self.epochs = model, epochs
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs)

    def fit(self, train_loader, val_loader):
        for epoch in range(self.epochs):
            self.model.train()
            for x, y in train_loader:
                loss = F.smooth_l1_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            print(f"epoch {epoch}: val mse {self.score(val_loader):.4f}")
        return self.score(val_loader)

    @torch.no_grad()
    def score(self, loader):
        self.model.eval()
        errs = [F.mse_loss(self.model(x), y, reduction="none") for x, y in loader]
        return torch.cat(errs).mean().item()


if __name__ == "__main__":
    torch.manual_seed(8)
    train_loader = DataLoader(TensorDataset(*series(1500, 32, 1)), batch_size=50, shuffle=True)
    val_loader = DataLoader(TensorDataset(*series(300, 32, 2)), batch_size=100)
    model = TCN()
    trainer = Trainer(model, lr=4e-3, epochs=8)
    add_weight_norm(model)
    print("RESULT", trainer.fit(train_loader, val_loader))
