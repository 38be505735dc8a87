"""Person re-identification: identity-balanced batches and the batch-hard triplet loss."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(29)

IDS, VIEWS, RAW = 40, 12, 64
P, K, MARGIN = 8, 4, 0.3

look = torch.randn(IDS + 20, 10)
camera = torch.randn(10, RAW)


def crops(ids, views):
    pid = torch.arange(ids[0], ids[1]).repeat_interleave(views)
    x = torch.tanh(look[pid] @ camera * 0.4) + 0.9 * torch.randn(len(pid), RAW)
    return x, pid


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(RAW, 128), nn.ReLU(), nn.Linear(128, 32))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)


def pairwise(a):
    diff = a.unsqueeze(1) - a.unsqueeze(0)
    return diff.pow(2).sum(-1).sqrt()


def batch_hard(emb, pid):
    d = pairwise(emb)
    same = pid[:, None] == pid[None]
    furthest = (d * same).max(1).values
    nearest = (d + 10.0 * same).min(1).values
    return torch.relu(furthest - nearest + MARGIN).mean()


gallery, pid = crops((0, IDS), VIEWS)
model = Embedder()
optim = torch.optim.Adam(model.parameters(), lr=2e-3)

for it in range(200):
    people = torch.randperm(IDS)[:P]
    rows = torch.cat([p * VIEWS + torch.randperm(VIEWS)[:K] for p in people])
    loss = batch_hard(model(gallery[rows]), pid[rows])
    optim.zero_grad()
    loss.backward()
    optim.step()
    if it % 40 == 0:
        print(f"iter {it} triplet {loss.item():.4f}")

probe, probe_id = crops((IDS, IDS + 20), 6)
with torch.no_grad():
    d = torch.cdist(model(probe), model(probe))
    same = probe_id[:, None] == probe_id[None]
    off = ~torch.eye(len(d), dtype=torch.bool)
    ratio = d[same & off].mean() / d[~same].mean()
print("RESULT", ratio.item())
