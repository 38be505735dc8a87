"""Contrastive pretraining on heartbeats, then a linear probe for the beat class."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(30)

LENGTH, BEATS = 64, 5


def heartbeats(n, gen):
    """Beats differ in the shape of a small wave; gain, drift and delay are nuisances."""
    y = torch.randint(0, BEATS, (n,), generator=gen)
    t = torch.arange(LENGTH).float()
    main = 2.0 * torch.exp(-0.5 * ((t - 30) / 1.5) ** 2)
    centre = torch.tensor([40.0, 45.0, 50.0, 45.0, 42.0])[y][:, None]
    width = torch.tensor([2.0, 4.0, 2.5, 2.0, 5.0])[y][:, None]
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])[y][:, None]
    wave = sign * 0.8 * torch.exp(-0.5 * ((t - centre) / width) ** 2)
    x = main + wave + 0.1 * torch.randn(n, LENGTH, generator=gen)
    return distort(x, gen), y


def distort(x, gen):
    """Random gain, baseline wander, delay and noise for every row."""
    n = len(x)
    gain = 0.5 + torch.rand(n, 1, generator=gen)
    ramp = torch.linspace(-1, 1, LENGTH)
    drift = torch.randn(n, 1, generator=gen) * ramp + torch.randn(n, 1, generator=gen)
    delay = torch.randint(-6, 7, (n, 1), generator=gen)
    x = x.gather(1, (torch.arange(LENGTH) + delay) % LENGTH)
    return gain * x + drift + 0.15 * torch.randn(n, LENGTH, generator=gen)


class TwoViews(Dataset):
    """Gives two distorted views of a beat; the views of an epoch can be reproduced."""

    def __init__(self, x, seed):
        self.x, self.seed, self.epoch = x, seed, 0

    def __len__(self):
        return len(self.x)

    def view(self, i):
        gen = torch.Generator().manual_seed(self.seed + 100_003 * self.epoch + i)
        return distort(self.x[i:i + 1], gen)[0]

    def __getitem__(self, i):
        return self.view(i), self.view(i)


class Encoder(nn.Module):
    def __init__(self, width=64, dim=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.ReLU(),
            nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 16, width), nn.ReLU(), nn.Linear(width, dim),
        )
        self.project = nn.Sequential(nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x):
        return self.body(x[:, None])


def info_nce(a, b, temperature=0.2):
    z = F.normalize(torch.cat([a, b]), dim=1)
    logits = z @ z.T / temperature
    logits.fill_diagonal_(float("-inf"))
    n = len(a)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(logits, target)


def probe_error(encoder, train, val):
    """Cross entropy of a ridge-like linear probe on frozen features."""
    with torch.no_grad():
        f, v = encoder(train[0]), encoder(val[0])
    mean, std = f.mean(0), f.std(0) + 1e-5
    f, v = (f - mean) / std, (v - mean) / std
    probe = nn.Linear(f.shape[1], BEATS)
    opt = torch.optim.AdamW(probe.parameters(), lr=0.03, weight_decay=0.05)
    for _ in range(150):
        loss = F.cross_entropy(probe(f), train[1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return F.cross_entropy(probe(v), val[1]).item()


def main():
    gen = torch.Generator().manual_seed(300)
    unlabelled, _ = heartbeats(960, gen)
    train, val = heartbeats(150, gen), heartbeats(500, gen)
    data = TwoViews(unlabelled, seed=31)
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    model = Encoder()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(14):
        data.epoch = epoch
        total = 0.0
        for a, b in loader:
            loss = info_nce(model.project(model(a)), model.project(model(b)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if epoch % 4 == 1:
            print(f"epoch {epoch} contrastive loss {total / len(loader):.4f}")
    print(f"RESULT {probe_error(model, train, val):.5f}")


if __name__ == "__main__":
    main()
