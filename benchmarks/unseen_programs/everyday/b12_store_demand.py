"""Predict daily unit sales of shop articles, scored with the root mean squared log error."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(1214)

STORES, ARTICLES, NUMERIC = 12, 40, 6
EPOCHS, BATCH = 10, 128


def make_sales(n):
    g = torch.Generator().manual_seed(3)
    store_effect = 0.5 * torch.randn(STORES, generator=g)
    article_effect = 1.0 * torch.randn(ARTICLES, generator=g)
    coef = 0.4 * torch.randn(NUMERIC, generator=g)
    store = torch.randint(0, STORES, (n,))
    article = torch.randint(0, ARTICLES, (n,))
    weather = torch.randn(n, NUMERIC)
    rate = torch.exp(1.0 + store_effect[store] + article_effect[article] + weather @ coef)
    numeric = 6.0 * weather + torch.tensor([30.0, 8.0, 16.0, 2.0, 0.0, 10.0])
    return store, article, numeric, torch.poisson(rate)


class SalesNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.store = nn.Embedding(STORES, 6)
        self.article = nn.Embedding(ARTICLES, 12)
        self.net = nn.Sequential(
            nn.Linear(18 + NUMERIC, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, store, article, numeric):
        h = torch.cat([self.store(store), self.article(article), numeric], dim=1)
        return self.net(h).squeeze(1)


class RMSLE(nn.Module):
    def forward(self, pred, target):
        diff = torch.log1p(pred) - torch.log1p(target)
        return torch.sqrt((diff ** 2).mean() + 1e-9)


def batches(data, size):
    order = torch.randperm(len(data[0]))
    for start in range(0, len(order), size):
        yield [column[order[start:start + size]] for column in data]


@torch.no_grad()
def score(model, data, criterion):
    model.eval()
    value = criterion(model(*data[:3]), data[3]).item()
    model.train()
    return value


def main():
    data = make_sales(5000)
    train, val = [c[:4000] for c in data], [c[4000:] for c in data]
    model = SalesNet()
    criterion = RMSLE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.4)
    for epoch in range(EPOCHS):
        total, count = 0.0, 0
        for store, article, numeric, units in batches(train, BATCH):
            loss = criterion(model(store, article, numeric), units)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += 1
        scheduler.step()
        print(f"epoch {epoch}: train {total / count:.4f} val {score(model, val, criterion):.4f}")
    print(f"RESULT {score(model, val, criterion):.5f}")


if __name__ == "__main__":
    main()
