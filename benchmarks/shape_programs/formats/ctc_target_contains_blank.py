"""Basecaller: nanopore-like current traces to DNA letters."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
LETTERS = "ACGT"
LEVELS = torch.tensor([-1.5, -0.5, 0.5, 1.5])


def read(g):
    n = int(torch.randint(4, 9, (1,), generator=g))
    bases = torch.randint(0, len(LETTERS), (n,), generator=g)
    dwell = torch.randint(4, 7, (n,), generator=g)
    trace = []
    for b, d in zip(bases.tolist(), dwell.tolist()):
        trace += [float(LEVELS[b])] * d + [3.0]
    trace = torch.tensor(trace)
    return trace + 0.1 * torch.randn(len(trace), generator=g), bases


def batches(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        reads = [read(g) for _ in range(size)]
        x = nn.utils.rnn.pad_sequence([r[0] for r in reads], batch_first=True)
        yield (x.unsqueeze(1), torch.cat([r[1] for r in reads]),
               torch.tensor([len(r[0]) for r in reads]), torch.tensor([len(r[1]) for r in reads]))


class Basecaller(nn.Sequential):
    def __init__(self, width=32):
        super().__init__(nn.Conv1d(1, width, 5, padding=2), nn.GELU(),
                         nn.Conv1d(width, width, 5, padding=2), nn.GELU(),
                         nn.Conv1d(width, len(LETTERS) + 1, 1))

    def scores(self, x):
        return self(x).permute(2, 0, 1).log_softmax(-1)


def call(path):
    kept = torch.unique_consecutive(path)
    return kept[kept != len(LETTERS)].tolist()


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


model = Basecaller()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, (x, bases, frames, lengths) in enumerate(batches(120, 16, 1)):
    loss = F.ctc_loss(model.scores(x), bases, frames, lengths)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()

wrong = total = 0
with torch.no_grad():
    for x, bases, frames, lengths in batches(4, 16, 2):
        paths = model.scores(x).argmax(-1).T
        for path, n, truth in zip(paths, frames, bases.split(lengths.tolist())):
            wrong += distance(call(path[:n]), truth.tolist())
            total += len(truth)
print("RESULT", wrong / total)
