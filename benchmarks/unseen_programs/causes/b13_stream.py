"""Gesture classifier fed from recorded sessions through a streaming pipeline."""
import random
from itertools import chain, islice

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
GESTURES, T, CH = 6, 32, 3


def record(label, gen):
    t = torch.linspace(0, 1, T)
    f = 1 + label * 0.7
    phase = torch.rand(CH, 1, generator=gen) * 6.28
    gain = torch.tensor([[1.0], [0.5 + 0.1 * label], [0.8]])
    return gain * torch.sin(6.28 * f * t + phase) + 0.5 * torch.randn(CH, T, generator=gen)


def make_sessions(per_gesture, seed):
    gen = torch.Generator().manual_seed(seed)
    return [[(record(k, gen), k) for _ in range(per_gesture)] for k in range(GESTURES)]


def read(sessions):
    yield from chain.from_iterable(sessions)


def shuffled(stream, size, rng):
    buffer = list(islice(stream, size))
    for item in stream:
        k = rng.randrange(size)
        yield buffer[k]
        buffer[k] = item
    rng.shuffle(buffer)
    yield from buffer


def batched(stream, n):
    while chunk := list(islice(stream, n)):
        xs, ys = zip(*chunk)
        yield torch.stack(xs), torch.tensor(ys)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(CH, 24, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(24, 32, 5, padding=2), nn.ReLU())
        self.fc = nn.Linear(64, GESTURES)

    def forward(self, x):
        h = self.conv(x)
        return self.fc(torch.cat([h.mean(-1), h.amax(-1)], 1))


def main():
    torch.manual_seed(1)
    rng = random.Random(1)
    sessions = make_sessions(400, 10)
    test = list(chain.from_iterable(make_sessions(100, 11)))
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    for epoch in range(8):
        total, n = 0.0, 0
        for x, y in batched(shuffled(read(sessions), 100, rng), 32):
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, n = total + loss.item(), n + 1
        print(f"epoch {epoch} loss {total / n:.4f}")
    x, y = next(batched(iter(test), len(test)))
    with torch.no_grad():
        error = (net(x).argmax(1) != y).float().mean().item()
    print("RESULT", error)


main()
