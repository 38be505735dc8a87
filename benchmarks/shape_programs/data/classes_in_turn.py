import random

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)

GENRES = ["ambient", "drums", "choir", "strings"]


def synth(genre, n, length=256):
    t = torch.arange(length) / length
    base = {"ambient": 5.0, "drums": 9.0, "choir": 14.0, "strings": 20.0}[genre]
    freq = base + torch.randn(n, 1) * 1.5
    phase = torch.rand(n, 1) * 6.28
    clip = torch.sin(6.28 * freq * t + phase) + 0.3 * torch.sin(12.57 * freq * t)
    return clip + 0.5 * torch.randn(n, length)


def record_shards(n):
    shards = {}
    for k, genre in enumerate(GENRES):
        shards[genre] = [(clip, k) for clip in synth(genre, n)]
    return shards


class Jukebox:
    """Streams clips from one file per genre, the way they lie on the disk."""

    def __init__(self, shards, size):
        self.shards, self.size = shards, size

    def clips(self):
        names = list(self.shards)
        random.shuffle(names)
        playlist = []
        for name in names:
            playlist.extend(random.sample(self.shards[name], len(self.shards[name])))
        yield from playlist

    def batches(self):
        clips, labels = [], []
        for clip, label in self.clips():
            clips.append(clip)
            labels.append(label)
            if len(clips) == self.size:
                yield torch.stack(clips), torch.tensor(labels)
                clips, labels = [], []


def spectrum(clips):
    return torch.fft.rfft(clips).abs()[:, :40].log1p()


train = Jukebox(record_shards(96), 16)
test = record_shards(50)
test_x = torch.stack([c for g in GENRES for c, _ in test[g]])
test_y = torch.tensor([k for g in GENRES for _, k in test[g]])

net = nn.Sequential(nn.Linear(40, 48), nn.Tanh(), nn.Linear(48, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for epoch in range(5):
    total = 0.0
    for clips, labels in train.batches():
        loss = F.cross_entropy(net(spectrum(clips)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 24:.3f}")

with torch.no_grad():
    error = F.cross_entropy(net(spectrum(test_x)), test_y).item()
print("RESULT", error)
