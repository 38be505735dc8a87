"""Classify seismic spectrogram windows that are cut and normalised once before training."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(9)

N_FFT, HOP, SAMPLES = 32, 16, 256
CLASSES = ("noise", "p_wave", "s_wave", "blast")


def synth_trace(kind, rng):
    t = np.arange(SAMPLES)
    x = 0.5 * rng.standard_normal(SAMPLES)
    onset = rng.integers(40, 140)
    tail = np.where(t >= onset, np.exp(-(t - onset) / 45.0), 0.0)
    if kind == 1:
        x += 2.0 * tail * np.sin(2 * np.pi * 0.23 * t + rng.uniform(0, 6))
    elif kind == 2:
        x += 2.4 * tail * np.sin(2 * np.pi * 0.09 * t + rng.uniform(0, 6))
    elif kind == 3:
        burst = np.where(t >= onset, np.exp(-(t - onset) / 12.0), 0.0)
        x += 3.0 * burst * rng.standard_normal(SAMPLES)
    return x


class ArrivalWindows(Dataset):
    """Log spectrograms, standardised per window."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.labels = torch.from_numpy(rng.integers(0, len(CLASSES), n))
        n_frames = (SAMPLES - N_FFT) // HOP + 1
        window = np.hanning(N_FFT)
        spec = np.empty((n_frames, N_FFT // 2), dtype=np.float32)
        self.items = []
        for label in self.labels.tolist():
            trace = synth_trace(label, rng)
            for f in range(n_frames):
                piece = trace[f * HOP:f * HOP + N_FFT] * window
                spec[f] = np.log1p(np.abs(np.fft.rfft(piece))[1:])
            spec -= spec.mean()
            spec /= spec.std() + 1e-6
            self.items.append(torch.from_numpy(spec))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i][None], self.labels[i]


class ArrivalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
        )
        self.head = nn.Linear(32, len(CLASSES))

    def forward(self, x):
        h = self.conv(x)
        return self.head(torch.cat([h.mean((2, 3)), h.amax((2, 3))], 1))


def evaluate(model, loader):
    model.eval()
    total = count = 0
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(model(x), y, reduction="sum").item()
            count += len(y)
    model.train()
    return total / count


def main():
    train = DataLoader(ArrivalWindows(960, 1), batch_size=48, shuffle=True, drop_last=True)
    val = DataLoader(ArrivalWindows(320, 2), batch_size=160)
    model = ArrivalNet()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=8)
    for epoch in range(8):
        losses = []
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        sched.step()
        print(f"epoch {epoch} train {np.mean(losses):.4f} val {evaluate(model, val):.4f}")
    print(f"RESULT {evaluate(model, val):.5f}")


if __name__ == "__main__":
    main()
