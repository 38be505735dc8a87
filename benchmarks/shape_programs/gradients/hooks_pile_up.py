# Recommender with decoupled shrinkage of the embedding tables, trained epoch by epoch.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
USERS, ITEMS = 60, 50


class Factors(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1)


class Shrink:
    def __init__(self, amount, tables):
        self.amount, self.tables = amount, tables

    @torch.no_grad()
    def __call__(self, optimizer, args, kwargs):
        for table in self.tables:
            table.weight.mul_(1 - self.amount)


class Session:
    def __init__(self, model, ratings):
        self.model, self.ratings = model, ratings
        self.opt = torch.optim.Adam(model.parameters(), lr=2e-2)

    def epoch(self, gen):
        self.opt.register_step_post_hook(Shrink(2e-3, [self.model.user, self.model.item]))
        total = 0.0
        for _ in range(6):
            u = torch.randint(0, USERS, (400,), generator=gen)
            i = torch.randint(0, ITEMS, (400,), generator=gen)
            loss = nn.functional.mse_loss(self.model(u, i), self.ratings[u, i])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / 6


gen = torch.Generator().manual_seed(2)
ratings = torch.randn(USERS, 3, generator=gen) @ torch.randn(3, ITEMS, generator=gen)
session = Session(Factors(), ratings)
for e in range(25):
    value = session.epoch(gen)
    if e % 6 == 0:
        print(e, round(value, 4))
with torch.no_grad():
    full = session.model.user.weight @ session.model.item.weight.T
    print("RESULT", nn.functional.mse_loss(full, ratings).item())
