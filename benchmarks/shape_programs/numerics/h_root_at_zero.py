"""Embed items so that distances match given dissimilarities; duplicates lie exactly on one another."""
import torch
from torch import nn

torch.manual_seed(19)
torch.set_num_threads(1)
N = 60
place = torch.randn(N, 3)
place[N // 2 :] = place[: N // 2]
wanted = torch.cdist(place, place)


class Layout(nn.Module):
    def __init__(self):
        super().__init__()
        self.at = nn.Parameter(torch.randn(N // 2, 3))

    def forward(self):
        return torch.cat([self.at, self.at])


def stress(at, rows):
    apart = torch.cdist(at[rows], at)
    gap = torch.linalg.vector_norm(at[rows] - at[rows.roll(1)], dim=1)
    want_gap = torch.linalg.vector_norm(place[rows] - place[rows.roll(1)], dim=1)
    return (apart - wanted[rows]).square().mean() + 0.1 * (gap - want_gap).square().mean()


layout = Layout()
opt = torch.optim.Adam(layout.parameters(), lr=0.05)
for step in range(150):
    rows = torch.randint(0, N, (24,))
    loss = stress(layout(), rows)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
with torch.no_grad():
    print("RESULT", stress(layout(), torch.arange(N)).item())
