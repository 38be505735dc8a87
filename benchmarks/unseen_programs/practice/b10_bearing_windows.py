"""Estimate the wear of bearings from windows of vibration recordings."""
import torch
torch.set_num_threads(1)
torch.manual_seed(61)
import numpy as np
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RATE, WINDOW = 2000, 256
rng = np.random.default_rng(4)


def recording(wear, seconds=1.0):
    t = np.arange(int(RATE * seconds)) / RATE
    shaft = 25 + rng.normal(0, 0.5)
    hum = np.sin(2 * np.pi * shaft * t + rng.uniform(0, 6))
    knock = np.sin(2 * np.pi * 310 * t) * (np.sin(2 * np.pi * shaft * 3.1 * t) > 0.8)
    return hum + wear * knock + rng.normal(0, 0.15, t.size)


def spectral_windows(signal, buffer):
    """Cuts a recording into tapered windows."""
    taper = np.hanning(WINDOW)
    out = []
    for start in range(0, len(signal) - WINDOW, WINDOW):
        np.multiply(signal[start:start + WINDOW], taper, out=buffer)
        out.append(buffer)
    return out


def build(n_machines):
    buffer = np.empty(WINDOW)
    windows, wear = [], []
    for _ in range(n_machines):
        level = rng.uniform(0, 1.5)
        cut = spectral_windows(recording(level), buffer)
        windows.extend(cut)
        wear.extend([level] * len(cut))
    x = np.stack(windows).astype(np.float32)
    spec = np.log1p(np.abs(np.fft.rfft(x, axis=1)))[:, :96].astype(np.float32)
    return torch.from_numpy(spec), torch.tensor(wear, dtype=torch.float32)[:, None]


class WearModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(8, 16, 5, padding=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16 * 24, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.conv(x[:, None]))


def evaluate(model, loader, loss_fn):
    model.eval()
    with torch.no_grad():
        losses = [loss_fn(model(x), y) * len(y) for x, y in loader]
    model.train()
    return (sum(losses) / len(loader.dataset)).item()


x_train, y_train = build(300)
x_val, y_val = build(60)
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=64, shuffle=True)
val_loader = DataLoader(TensorDataset(x_val, y_val), batch_size=256)
model = WearModel()
loss_fn = nn.MSELoss()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
plan = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)

for epoch in range(7):
    for x, y in train_loader:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
    plan.step()
    print(f"epoch {epoch} val {evaluate(model, val_loader, loss_fn):.4f}")

print("RESULT", evaluate(model, val_loader, loss_fn))
