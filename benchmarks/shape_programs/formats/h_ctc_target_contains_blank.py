"""Handwritten digit strips: class 10 separates, label tables are filled up with it on the right."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
GAP = 10
glyphs = torch.randn(10, 6, 4)


def strips(size, g):
    lengths = torch.randint(3, 7, (size,), generator=g)
    table = torch.full((size, 6), GAP)
    pictures = torch.zeros(size, 6, 40)
    widths = []
    for i, n in enumerate(lengths.tolist()):
        digits = torch.randint(0, 10, (n,), generator=g)
        table[i, :n] = digits
        strip = torch.cat([nn.functional.pad(glyphs[d], (0, 2)) for d in digits.tolist()], dim=1)
        pictures[i, :, :strip.shape[1]] = strip
        widths.append(strip.shape[1])
    return pictures + 0.1 * torch.randn(pictures.shape, generator=g), table, torch.tensor(widths), lengths


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Conv1d(6, 48, 5, padding=2)
        self.mix = nn.Conv1d(48, 48, 3, padding=1)
        self.name = nn.Linear(48, 11)

    def forward(self, x):
        h = torch.relu(self.mix(torch.relu(self.look(x))))
        return self.name(h.permute(2, 0, 1)).log_softmax(-1)


g = torch.Generator().manual_seed(1)
reader = Reader()
criterion = nn.CTCLoss(blank=GAP)
optimizer = torch.optim.Adam(reader.parameters(), lr=1e-2)
for step in range(120):
    x, table, widths, lengths = strips(16, g)
    loss = criterion(reader(x), table, widths, lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    x, table, widths, lengths = strips(64, g)
    missed = 0
    for path, row, w, n in zip(reader(x).argmax(-1).T, table, widths, lengths):
        found = torch.unique_consecutive(path[:w])
        missed += found[found != GAP].tolist() != row[:n].tolist()
print("RESULT", missed / 64)
