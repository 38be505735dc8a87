"""Lip reading with label rows as wide as the longest sentence; many clips have fewer frames than that."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
shape = torch.randn(8, 10)
g = torch.Generator().manual_seed(5)


def clips(size):
    clip, rows, frames, words = torch.zeros(40, size, 10), torch.zeros(size, 18, dtype=torch.long), [], []
    for i in range(size):
        n = int(torch.randint(2, 10, (1,), generator=g))
        s = torch.randint(1, 8, (n,), generator=g)
        film = torch.cat([torch.stack([shape[k], shape[k], shape[0]]) for k in s.tolist()])
        clip[:len(film), i] = film
        rows[i, :n] = s
        frames.append(len(film))
        words.append(n)
    return clip + 0.1 * torch.randn(clip.shape, generator=g), rows, tuple(frames), tuple(words)


model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 8), nn.LogSoftmax(-1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-3)
for step in range(120):
    clip, rows, frames, words = clips(12)
    loss = F.ctc_loss(model(clip), rows, frames, words, reduction="sum") / sum(words)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    clip, rows, frames, words = clips(64)
    loss = F.ctc_loss(model(clip), rows, frames, words, reduction="none")
print("RESULT", (loss / torch.tensor(words)).mean().item())
