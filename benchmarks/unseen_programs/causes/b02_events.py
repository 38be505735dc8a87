"""Set encoder over patient events: a few learned queries read an event list of varying length."""
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
CHANNELS, DIM, HEADS, QUERIES = 6, 32, 4, 3


class EventLists(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(4, 19, (1,), generator=g))
            kind = torch.randint(0, CHANNELS, (length,), generator=g)
            value = torch.randn(length, generator=g)
            feats = torch.cat([F.one_hot(kind, CHANNELS).float(), value[:, None]], 1)
            risk = (value * (kind == 2)).sum() - (value * (kind == 4)).sum() + 0.8 * value[kind < 2].sum()
            self.items.append((feats, float(risk > 0)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(rows):
    feats = pad_sequence([f for f, _ in rows], batch_first=True)
    feats = F.pad(feats, (0, 0, 0, 20 - feats.shape[1]))
    lengths = torch.tensor([len(f) for f, _ in rows])
    mask = torch.arange(20)[None, :] >= lengths[:, None]
    return feats, mask, torch.tensor([r for _, r in rows])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(CHANNELS + 1, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.queries = nn.Parameter(torch.randn(QUERIES, DIM) * 0.3)
        self.kv = nn.Linear(DIM, 2 * DIM)
        self.head = nn.Sequential(nn.LayerNorm(QUERIES * DIM), nn.Linear(QUERIES * DIM, 32), nn.GELU(), nn.Linear(32, 1))

    def split(self, t):
        return t.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2)

    def forward(self, feats, mask):
        k, v = self.kv(self.embed(feats)).chunk(2, dim=-1)
        q = self.queries.expand(len(feats), -1, -1)
        read = F.scaled_dot_product_attention(
            self.split(q), self.split(k), self.split(v), attn_mask=mask[:, None, None, :])
        return self.head(read.transpose(1, 2).flatten(1)).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    wrong = total = 0
    with torch.no_grad():
        for feats, mask, y in loader:
            wrong += ((model(feats, mask) > 0).float() != y).sum().item()
            total += len(y)
    return wrong / total


def main():
    torch.manual_seed(3)
    train = DataLoader(EventLists(3000, 1), batch_size=64, shuffle=True, collate_fn=collate)
    valid = DataLoader(EventLists(800, 2), batch_size=200, collate_fn=collate)
    model = Reader()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(8):
        model.train()
        for feats, mask, y in train:
            loss = F.binary_cross_entropy_with_logits(model(feats, mask), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.3f} error {evaluate(model, valid):.3f}")
    print("RESULT", evaluate(model, valid))


main()
