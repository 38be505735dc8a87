"""Predict the next product of a shop visitor from the padded history of views."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(1010)

PRODUCTS, GROUPS, MAX_LEN, DIM = 60, 6, 10, 32


class Sessions(Dataset):
    """Visitors stay in a product group most of the time; product 0 is padding."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            group = torch.randint(0, GROUPS, (1,), generator=g).item()
            length = int(torch.poisson(torch.tensor(4.5), generator=g).clamp(0, MAX_LEN))
            stay = torch.rand(length + 1, generator=g) < 0.8
            inside = torch.randint(0, PRODUCTS // GROUPS, (length + 1,), generator=g)
            anywhere = torch.randint(0, PRODUCTS, (length + 1,), generator=g)
            view = torch.where(stay, group * (PRODUCTS // GROUPS) + inside // 2, anywhere) + 1
            self.rows.append((view[:-1], view[-1]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        history, target = self.rows[i]
        return F.pad(history, (0, MAX_LEN - len(history))), target


class Pool(nn.Module):
    """Attention over the history with a learned query."""

    def __init__(self, dim):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * 0.1)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, h, padding):
        score = self.key(h) @ self.query / h.shape[-1] ** 0.5
        score = score.masked_fill(padding, float("-inf"))
        weight = torch.softmax(score, dim=1)
        return (weight.unsqueeze(-1) * self.value(h)).sum(1)


class NextItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(PRODUCTS + 1, DIM, padding_idx=0)
        self.place = nn.Parameter(torch.zeros(MAX_LEN, DIM))
        self.pool = Pool(DIM)
        self.out = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, PRODUCTS + 1))

    def forward(self, history):
        h = self.item(history) + self.place
        return self.out(self.pool(h, history == 0))


def validate(model, loader):
    model.eval()
    total = count = 0
    with torch.no_grad():
        for history, target in loader:
            total += F.cross_entropy(model(history), target, reduction="sum").item()
            count += len(target)
    model.train()
    return total / count


def main():
    train = DataLoader(Sessions(3000, seed=1), batch_size=64, shuffle=True)
    val = DataLoader(Sessions(600, seed=2), batch_size=200)
    model = NextItem()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(6):
        running = 0.0
        for history, target in train:
            loss = F.cross_entropy(model(history), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch} train {running / len(train):.4f} val {validate(model, val):.4f}")
    print(f"RESULT {validate(model, val):.5f}")


if __name__ == "__main__":
    main()
