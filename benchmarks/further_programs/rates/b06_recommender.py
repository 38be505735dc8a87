"""Matrix-factorisation recommender with side features."""
import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, users, items, d=8):
        super().__init__()
        self.u = nn.Embedding(users, d)
        self.i = nn.Embedding(items, d)
        self.bias_u = nn.Embedding(users, 1)
        self.bias_i = nn.Embedding(items, 1)
        for e in (self.u, self.i):
            nn.init.normal_(e.weight, std=0.1)
        for e in (self.bias_u, self.bias_i):
            nn.init.zeros_(e.weight)

    def forward(self, user, item):
        dot = (self.u(user) * self.i(item)).sum(-1)
        return dot + self.bias_u(user).squeeze(-1) + self.bias_i(item).squeeze(-1)


def ratings(users, items, n, gen):
    pu, pi = torch.randn(users, 4, generator=gen), torch.randn(items, 4, generator=gen)
    user = torch.randint(users, (n,), generator=gen)
    item = torch.randint(items, (n,), generator=gen)
    r = (pu[user] * pi[item]).sum(-1) * 0.5 + 0.1 * torch.randn(n, generator=gen)
    return user, item, r


def rate(step, peak, warmup, total):
    if step < warmup:
        factor = (step + 1) / warmup
    else:
        factor = 1 - (step - warmup) / (total - warmup)
    return peak * max(factor, 0.0)


def fit(seed=0, epochs=12, batch=128, peak=0.03):
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed + 1)
    user, item, r = ratings(80, 60, 5000, gen)
    n_train = 4000
    model = Recommender(80, 60)
    opt = torch.optim.Adam(model.parameters(), lr=peak)
    total = epochs * -(-n_train // batch)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: rate(s, peak, total // 10, total))
    for epoch in range(epochs):
        for idx in torch.randperm(n_train, generator=gen).split(batch):
            loss = nn.functional.mse_loss(model(user[idx], item[idx]), r[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        if epoch % 4 == 0:
            print("epoch", epoch, "loss", loss.item())
    with torch.no_grad():
        return nn.functional.mse_loss(model(user[n_train:], item[n_train:]), r[n_train:]).item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("RESULT", fit())
