"""Accent classification from log-mel spectrograms with time and frequency masking."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(32)

MELS, FRAMES, ACCENTS = 24, 32, 5


def utterances(n, gen):
    accents = torch.Generator().manual_seed(77)
    rise = torch.randn(ACCENTS, 3, generator=accents)
    y = torch.randint(0, ACCENTS, (n,), generator=gen)
    t = torch.linspace(0, 1, FRAMES)
    melody = 8 + 6 * torch.rand(n, 1, generator=gen)
    for k in range(3):
        phase = 0.5 * torch.randn(n, 1, generator=gen)
        melody = melody + 2.0 * rise[y, k][:, None] * torch.sin(3.14 * (k + 1) * t + phase)
    mel = torch.arange(MELS).float()[None, :, None]
    x = 2 * torch.exp(-0.5 * ((mel - melody[:, None, :]) / 1.3) ** 2)
    x = x + torch.exp(-0.5 * ((mel - melody[:, None, :] * 1.6) / 1.5) ** 2)
    return x + 0.3 * torch.randn(n, MELS, FRAMES, generator=gen), y


class Masking:
    """SpecAugment: one band of mels and one stretch of frames are set to zero."""

    def __init__(self, mels, frames):
        self.mels, self.frames = mels, frames

    def __call__(self, spec):
        f = int(torch.randint(0, self.mels + 1, ()))
        f0 = int(torch.randint(0, MELS - f + 1, ()))
        t = int(torch.randint(0, self.frames + 1, ()))
        t0 = int(torch.randint(0, FRAMES - t + 1, ()))
        spec[f0:f0 + f] = 0
        spec[:, t0:t0 + t] = 0
        return spec


class Utterances(Dataset):
    def __init__(self, specs, labels, transform=None):
        self.specs, self.labels, self.transform = specs, labels, transform

    def __len__(self):
        return len(self.specs)

    def __getitem__(self, i):
        spec = self.specs[i]
        if self.transform is not None:
            spec = self.transform(spec)
        return spec, self.labels[i]


class AccentNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(MELS, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(width * FRAMES // 2, ACCENTS))

    def forward(self, x):
        return self.fc(self.conv(x))


def train_epoch(model, loader, opt):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    losses = [F.cross_entropy(model(x), y) for x, y in loader]
    return torch.stack(losses).mean().item()


def main(epochs=12):
    gen = torch.Generator().manual_seed(320)
    train_set = Utterances(*utterances(800, gen), transform=Masking(mels=8, frames=10))
    val_set = Utterances(*utterances(400, gen))
    train, val = DataLoader(train_set, 40, shuffle=True), DataLoader(val_set, 200)
    model = AccentNet()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    for epoch in range(epochs):
        loss = train_epoch(model, train, opt)
        sched.step()
        if epoch % 3 == 2:
            print(f"epoch {epoch} train {loss:.4f} val {evaluate(model, val):.4f}")
    print(f"RESULT {evaluate(model, val):.5f}")


if __name__ == "__main__":
    main()
