# Micro-batches are grouped by token budget, so every step uses another number of them.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def stream(n, generator):
    for _ in range(n):
        rows = int(torch.randint(3, 30, (1,), generator=generator))
        x = torch.randn(rows, 8, generator=generator)
        yield x, torch.tanh(x[:, :1] * x[:, 1:2]) + 0.3 * x[:, 2:3]


def grouped(batches, budget):
    group, size = [], 0
    for batch in batches:
        group.append(batch)
        size += len(batch[0])
        if size >= budget:
            yield group, size
            group, size = [], 0
    if group:
        yield group, size


model = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
gen = torch.Generator().manual_seed(4)
for epoch in range(10):
    for group, size in grouped(stream(37, gen), 64):
        opt.zero_grad(set_to_none=False)
        for x, y in group:
            loss = nn.functional.mse_loss(model(x), y, reduction="sum") / size
            loss.backward()
        opt.step()
x, y = next(stream(1, torch.Generator().manual_seed(9)))
total, rows = 0.0, 0
with torch.no_grad():
    for x, y in stream(40, torch.Generator().manual_seed(9)):
        total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
        rows += len(x)
print("RESULT", total / rows)
