"""Skip-gram style product embeddings with a shared output table, in mixed precision."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
CATALOGUE = 1999
WIDTH = 128


def baskets(n, g):
    first = (torch.rand(n, generator=g) ** 3 * 200).long()
    second = (first * 7 + torch.randint(0, 3, (n,), generator=g)) % CATALOGUE
    return first, second


class Neighbours(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(CATALOGUE, WIDTH))
        self.turn = nn.Parameter(torch.eye(WIDTH) + 0.02 * torch.randn(WIDTH, WIDTH))

    def forward(self, item):
        h = torch.einsum("bd,de->be", F.embedding(item, self.table), self.turn)
        return torch.einsum("be,ve->bv", h, self.table)


g = torch.Generator().manual_seed(1)
model = Neighbours()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    item, other = baskets(128, g)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(item)
    loss = F.cross_entropy(scores.float(), other)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    item, other = baskets(512, g)
    print("RESULT", F.cross_entropy(model(item), other).item())
