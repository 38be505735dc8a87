"""Click-through model trained on a stream of log shards read by loader workers."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
torch.manual_seed(26)

USERS, ADS, SLOTS = 120, 90, 4
WORKERS, BATCH, STEPS = 4, 32, 240


def hidden_taste(seed=260):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(USERS, 5, generator=g), torch.randn(ADS, 5, generator=g)


def impressions(n, gen):
    """Rows of user, ad, slot and whether the ad was clicked."""
    taste_u, taste_a = hidden_taste()
    u = torch.randint(0, USERS, (n,), generator=gen)
    a = torch.randint(0, ADS, (n,), generator=gen)
    s = torch.randint(0, SLOTS, (n,), generator=gen)
    logit = 1.4 * (taste_u[u] * taste_a[a]).sum(1) + 0.5 - 0.5 * s.float()
    click = (torch.rand(n, generator=gen) < torch.sigmoid(logit)).float()
    return u, a, s, click


class LogStream(IterableDataset):
    """Shards of a log, one after the other, in the order in which they were written."""

    def __init__(self, shards, rows_per_shard, seed):
        self.shards, self.rows, self.seed = shards, rows_per_shard, seed

    def __iter__(self):
        for shard in range(self.shards):
            gen = torch.Generator().manual_seed(self.seed * 1000 + shard)
            u, a, s, click = impressions(self.rows, gen)
            for i in range(self.rows):
                yield u[i], a[i], s[i], click[i]


class ClickModel(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.user, self.ad = nn.Embedding(USERS, dim), nn.Embedding(ADS, dim)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.ad.weight, std=0.3)
        self.slot = nn.Embedding(SLOTS, 1)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, u, a, s):
        return (self.user(u) * self.ad(a)).sum(1) + self.slot(s).squeeze(1) + self.bias


def log_loss(model, rows):
    u, a, s, click = rows
    return F.binary_cross_entropy_with_logits(model(u, a, s), click)


def main():
    stream = LogStream(shards=16, rows_per_shard=600, seed=3)
    loader = DataLoader(stream, batch_size=BATCH, num_workers=WORKERS, drop_last=True)
    held_out = impressions(3000, torch.Generator().manual_seed(9))
    model = ClickModel()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.15)
    for step, rows in enumerate(loader, start=1):
        loss = log_loss(model, rows)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 60 == 0:
            with torch.no_grad():
                v = log_loss(model, held_out).item()
            print(f"step {step} loss {loss.item():.4f} held out {v:.4f}")
        if step == STEPS:
            break
    rate = held_out[3].mean()
    base = -(rate * rate.log() + (1 - rate) * (1 - rate).log())
    print(f"log loss of a constant rate {base.item():.4f}")
    with torch.no_grad():
        print(f"RESULT {log_loss(model, held_out).item():.5f}")


if __name__ == "__main__":
    main()
