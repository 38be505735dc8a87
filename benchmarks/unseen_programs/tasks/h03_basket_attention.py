"""Predicts spending from the items of a basket, which may be empty."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(227)

ITEMS, SLOTS = 30, 8


def baskets(n, seed):
    g = torch.Generator().manual_seed(seed)
    items = torch.randint(0, ITEMS, (n, SLOTS), generator=g)
    size = torch.randint(0, SLOTS + 1, (n, 1), generator=g)
    held = torch.arange(SLOTS) < size
    value = torch.linspace(-1, 1, ITEMS)
    member = torch.randn(n, 3, generator=g)
    top = value[items].masked_fill(~held, -5.0).amax(1)
    spend = torch.where(held.any(1), top, 0.3 * member[:, 0]) + 0.4 * member[:, 1]
    return items, held, member, spend + 0.05 * torch.randn(n, generator=g)


def masked_softmax(score, held):
    """Shares over the held slots; all shares are 0 where there is no slot."""
    empty = ~held.any(-1, keepdim=True)
    score = score.masked_fill(~held & ~empty, float("-inf"))
    return score.softmax(-1) * held


class BasketModel(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.item = nn.Embedding(ITEMS, dim)
        self.member = nn.Linear(3, dim)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.heads = heads
        self.nothing = nn.Parameter(torch.zeros(dim))
        self.head = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, items, held, member):
        e = self.item(items)
        m = F.relu(self.member(member))
        b, s, d = e.shape
        q = self.query(m).view(b, self.heads, 1, -1)
        k = self.key(e).view(b, s, self.heads, -1).transpose(1, 2)
        v = e.view(b, s, self.heads, -1).transpose(1, 2)
        score = (q * k).sum(-1) / (d / self.heads) ** 0.5
        share = masked_softmax(score, held.unsqueeze(1).expand_as(score))
        pooled = (share.unsqueeze(-1) * v).sum(2).reshape(b, d)
        pooled = pooled + self.nothing * (~held.any(-1, keepdim=True))
        return self.head(torch.cat([pooled, m], dim=-1)).squeeze(-1)


def evaluate(model, data):
    items, held, member, spend = data
    with torch.no_grad():
        return F.mse_loss(model(items, held, member), spend).item()


if __name__ == "__main__":
    data, val = baskets(2000, 1), baskets(500, 2)
    model = BasketModel()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(12):
        for pick in torch.randperm(len(data[0])).split(80):
            items, held, member, spend = (part[pick] for part in data)
            loss = F.mse_loss(model(items, held, member), spend)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f} val {evaluate(model, val):.4f}")
    print("RESULT", evaluate(model, val))
