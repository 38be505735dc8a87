"""Rate control on the sum over each round; a second one on hits, where more is better."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(3)
centres = torch.randn(5, 10, generator=gen) * 1.5


def draw(n):
    y = torch.randint(0, 5, (n,), generator=gen)
    return centres[y] + torch.randn(n, 10, generator=gen), y


body = nn.Sequential(nn.Linear(10, 64), nn.ReLU())
head = nn.Linear(64, 5)
opts = [torch.optim.SGD(body.parameters(), lr=0.1, momentum=0.9), torch.optim.SGD(head.parameters(), lr=0.1)]
controls = [ReduceLROnPlateau(opts[0], factor=0.5, patience=2), ReduceLROnPlateau(opts[1], "max", factor=0.5, patience=2)]
for rnd in range(15):
    summed, hits = 0.0, 0
    for _ in range(9):
        x, y = draw(64)
        logits = head(body(x))
        loss = F.cross_entropy(logits, y)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        summed += loss.item()
        hits += int((logits.argmax(1) == y).sum())
    controls[0].step(summed)
    controls[1].step(hits)
    print(rnd, round(summed, 3), hits)
x, y = draw(1000)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(head(body(x)), y)))
