"""Trains a factorization machine that predicts clicks from fields with many categories."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(53)

FIELDS = {"user": 80, "advert": 60, "site": 40, "hour": 24}


def clicks(n, gen):
    sizes = list(FIELDS.values())
    ids = torch.stack([torch.randint(0, s, (n,), generator=gen) for s in sizes], dim=1)
    logit = torch.full((n,), -0.5)
    for f in range(len(sizes)):
        logit += TASTE[f][ids[:, f]][:, 0]
    user, advert, site = (TASTE[f][ids[:, f]][:, 1:] for f in range(3))
    logit += 1.2 * (user * advert).sum(dim=1) + 0.8 * (advert * site).sum(dim=1)
    return ids, (torch.rand(n, generator=gen) < logit.sigmoid()).float()


class FactorizationMachine(nn.Module):
    """Linear terms of all categories, and products of the factors of each two fields."""

    def __init__(self, sizes, factors=6):
        super().__init__()
        self.sizes = sizes
        self.linear = nn.Embedding(sum(sizes), 1)
        self.factors = nn.Embedding(sum(sizes), factors)
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.linear.weight, std=0.01)
        nn.init.normal_(self.factors.weight, std=0.1)

    def forward(self, ids):
        v = self.factors(ids)
        square_of_sum = v.sum(dim=1).pow(2)
        sum_of_squares = v.pow(2).sum(dim=1)
        pairs = 0.5 * (square_of_sum - sum_of_squares).sum(dim=1)
        return self.bias + self.linear(ids).sum(dim=(1, 2)) + pairs


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total = sum(F.binary_cross_entropy_with_logits(model(ids), y, reduction="sum").item()
                for ids, y in loader)
    model.train()
    return total / len(loader.dataset)


gen = torch.Generator().manual_seed(4)
TASTE = [torch.randn(size, 4, generator=gen) for size in FIELDS.values()]
train = DataLoader(TensorDataset(*clicks(20000, gen)), batch_size=256, shuffle=True)
val = DataLoader(TensorDataset(*clicks(4000, gen)), batch_size=1000)
model = FactorizationMachine(list(FIELDS.values()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
for epoch in range(5):
    total = 0.0
    for ids, y in train:
        loss = F.binary_cross_entropy_with_logits(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    print(f"epoch {epoch} loss {total / len(train.dataset):.4f} val {validate(model, val):.4f}")
print("RESULT", round(validate(model, val), 4))
