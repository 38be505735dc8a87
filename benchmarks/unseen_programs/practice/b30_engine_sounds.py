"""Classify engine faults from short sounds with random gain, offset and noise in training."""
import torch
torch.set_num_threads(1)
torch.manual_seed(260)
import math
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FAULTS, LENGTH = 5, 96


def engine(n, seed):
    g = torch.Generator().manual_seed(seed)
    fault = torch.randint(FAULTS, (n,), generator=g)
    t = torch.arange(LENGTH) / LENGTH
    speed = 6 + torch.rand(n, 1, generator=g)
    order = (fault + 2)[:, None].float()
    wave = torch.sin(2 * math.pi * speed * t)
    wave = wave + 0.5 * torch.sin(2 * math.pi * order * speed * 0.5 * t + fault[:, None])
    return (wave + 0.3 * torch.randn(n, LENGTH, generator=g)).unsqueeze(1), fault


class EngineSounds(Dataset):
    def __init__(self, n, seed, augment=False):
        self.waves, self.faults = engine(n, seed)
        self.augment = augment
        self.gen = torch.Generator().manual_seed(seed + 100)

    def __len__(self):
        return len(self.faults)

    def __getitem__(self, i):
        wave = self.waves[i]
        if self.augment:
            wave *= 0.7 + 0.6 * torch.rand(1, generator=self.gen)
            wave += 0.3 * torch.randn(wave.shape, generator=self.gen)
            wave += 0.2 * torch.randn(1, generator=self.gen)
        return wave, self.faults[i]


class FaultNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv1d(1, 16, 9, padding=4),
                                   nn.Conv1d(16, 24, 7, padding=3)])
        self.norm = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(4, 24)])
        self.head = nn.Linear(24 * 6, FAULTS)

    def forward(self, x):
        for conv, norm in zip(self.conv, self.norm):
            x = F.max_pool1d(F.relu(norm(conv(x))), 4)
        return self.head(x.flatten(1))


def run_epoch(model, loader, opt=None):
    model.train(opt is not None)
    total = n = 0
    with torch.set_grad_enabled(opt is not None):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            if opt is not None:
                opt.zero_grad()
                loss.backward()
                opt.step()
            total += loss.item() * len(y)
            n += len(y)
    return total / n


train_loader = DataLoader(EngineSounds(640, 1, augment=True), batch_size=32, shuffle=True)
val_loader = DataLoader(EngineSounds(500, 2), batch_size=250)
model = FaultNet()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(16):
    train_loss = run_epoch(model, train_loader, opt)
    if epoch % 3 == 0:
        print(f"epoch {epoch} train {train_loss:.4f} val {run_epoch(model, val_loader):.4f}")
print("RESULT", run_epoch(model, val_loader))
