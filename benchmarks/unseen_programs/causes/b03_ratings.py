"""Rating prediction: embeddings with plain SGD, the towers with Adam."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(5)

USERS, ITEMS, DIM = 300, 200, 12


def synth(n):
    u_true, i_true = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
    u, i = torch.randint(0, USERS, (n,)), torch.randint(0, ITEMS, (n,))
    r = 3 + torch.tanh((u_true[u] * i_true[i]).sum(1) * 0.8) * 1.8 + 0.1 * torch.randn(n)
    return u, i, r


class Tower(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.Embedding(rows, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM))
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, ids):
        e = self.table(ids)
        return e + self.mlp(e)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = Tower(USERS), Tower(ITEMS)
        self.bias = nn.Parameter(torch.tensor(3.0))

    def forward(self, u, i):
        return self.bias + (self.user(u) * self.item(i)).sum(-1)


class Learner:
    def __init__(self, model):
        self.model = model
        tables, dense = [], []
        for name, p in model.named_parameters():
            (tables if "table" in name else dense).append(p)
        self.optimizers = [
            torch.optim.Adam(dense, lr=2e-3),
            torch.optim.SGD(tables, lr=4.0, momentum=0.8),
        ]

    def advance(self, loss):
        loss.backward()
        for opt in self.optimizers:
            opt.step()
            self.model.zero_grad()

    def fit(self, data, epochs, batch):
        u, i, r = data
        for epoch in range(epochs):
            order = torch.randperm(len(r))
            total = 0.0
            for idx in order.split(batch):
                loss = (self.model(u[idx], i[idx]) - r[idx]).pow(2).mean()
                self.advance(loss)
                total += loss.item() * len(idx)
            print(f"epoch {epoch} mse {total / len(r):.4f}")


def main():
    u, i, r = synth(24000)
    cut = 20000
    learner = Learner(TwoTower())
    learner.fit((u[:cut], i[:cut], r[:cut]), epochs=16, batch=256)
    with torch.no_grad():
        err = (learner.model(u[cut:], i[cut:]) - r[cut:]).pow(2).mean().item()
    print("RESULT", err)


if __name__ == "__main__":
    main()
