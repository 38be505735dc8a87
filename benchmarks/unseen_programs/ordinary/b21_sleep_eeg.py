"""Sleep stage scoring from four-channel EEG epochs, each recording standardised on the fly."""
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

torch.set_num_threads(1)
torch.manual_seed(67)

CHANNELS, SAMPLES, STAGES = 4, 100, 3


class SleepEpochs(Dataset):
    def __init__(self, n):
        self.stage = torch.randint(0, STAGES, (n,))
        t = torch.arange(SAMPLES) / SAMPLES
        freq = torch.tensor([3.0, 9.0, 16.0])[self.stage].view(-1, 1, 1)
        phase = torch.rand(n, CHANNELS, 1) * 6.28
        gain = torch.rand(n, CHANNELS, 1) * 60 + 20
        self.signal = gain * (torch.sin(6.28 * freq * t + phase) + 0.9 * torch.randn(n, CHANNELS, SAMPLES))
        detached = torch.rand(n, CHANNELS) < 0.004
        self.signal[detached] = 0.0

    def __len__(self):
        return len(self.stage)

    def __getitem__(self, i):
        return self.signal[i], self.stage[i]


def standardise(x):
    mean = x.mean(-1, keepdim=True)
    std = x.std(-1, keepdim=True)
    return (x - mean) / std


class StageNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(CHANNELS, 16, 9, stride=2), nn.ReLU(),
            nn.Conv1d(16, 24, 7, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(24, STAGES)

    def forward(self, x):
        return self.head(self.conv(x))


def epoch(net, loader, criterion, optimizer=None):
    total, n = 0.0, 0
    for signal, stage in loader:
        x = standardise(signal)
        loss = criterion(net(x), stage)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(stage)
        n += len(stage)
    return total / n


night = DataLoader(SleepEpochs(960), batch_size=32, shuffle=True)
other_night = DataLoader(SleepEpochs(320), batch_size=64)
net = StageNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for e in range(5):
    print("epoch", e, "loss", epoch(net, night, criterion, optimizer))
net.eval()
with torch.no_grad():
    print("RESULT", epoch(net, other_night, criterion))
