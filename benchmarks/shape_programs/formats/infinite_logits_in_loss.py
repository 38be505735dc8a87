"""A pointer network that visits points in order of angle, trained by imitation with an exploration bonus."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
N = 6


def tours(batch, g):
    points = torch.randn(batch, N, 2, generator=g)
    order = torch.atan2(points[..., 1], points[..., 0]).argsort(1)
    return points, order


class Pointer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width))
        self.cell = nn.GRUCell(width, width)
        self.query = nn.Linear(width, width)

    def forward(self, points, order):
        keys = self.embed(points)
        state, last = keys.mean(1), torch.zeros_like(keys[:, 0])
        visited = torch.zeros(points.shape[:2], dtype=torch.bool)
        rows = torch.arange(len(points))
        for t in range(N):
            state = self.cell(last, state)
            score = torch.einsum("bd,bnd->bn", self.query(state), keys) / keys.shape[-1] ** 0.5
            yield score.masked_fill(visited, float("-inf")), order[:, t]
            last = keys[rows, order[:, t]]
            visited = visited.scatter(1, order[:, t:t + 1], True)


def objective(decisions, bonus=0.01):
    nll = entropy = 0.0
    for score, choice in decisions:
        logp = score - score.logsumexp(-1, keepdim=True)
        nll = nll - logp.gather(1, choice[:, None]).mean()
        entropy = entropy - (logp.exp() * logp).sum(-1).mean()
    return (nll - bonus * entropy) / N


g = torch.Generator().manual_seed(1)
pointer = Pointer()
optimizer = torch.optim.Adam(pointer.parameters(), lr=3e-3)
for step in range(120):
    loss = objective(pointer(*tours(64, g)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    losses = [nn.functional.cross_entropy(s, c).item() for s, c in pointer(*tours(512, g))]
print("RESULT", sum(losses) / N)
