"""Matrix factorisation recommender, sparse tables + dense MLP."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(10)
torch.set_num_threads(1)
U, I, K = 60, 50, 6
pu, qi = torch.randn(U, 4), torch.randn(I, 4)


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(U + 200, K, sparse=True)
        self.item = nn.Embedding(I + 1, K, sparse=True, padding_idx=0)
        self.bias = nn.Embedding(I + 1, 1, padding_idx=0, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(K, 16), nn.ReLU(), nn.Linear(16, 1))
        nn.init.zeros_(self.bias.weight)

    def forward(self, u, i):
        e = self.user(u) * self.item(i)
        return e.sum(-1) + self.mlp(e).squeeze(-1) + self.bias(i).squeeze(-1)


model = Rec()
tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
opt_sparse = torch.optim.SparseAdam(tables, lr=2e-2)
opt_dense = torch.optim.Adam(model.mlp.parameters(), lr=5e-3)


def ratings(n):
    u, i = torch.randint(0, U, (n,)), torch.randint(0, I, (n,))
    return u, i + 1, (pu[u] * qi[i]).sum(-1)


for step in range(600):
    u, i, r = ratings(128)
    loss = F.mse_loss(model(u, i), r)
    opt_sparse.zero_grad()
    opt_dense.zero_grad()
    loss.backward()
    opt_sparse.step()
    opt_dense.step()
    if step % 150 == 0:
        print(step, loss.item())
with torch.no_grad():
    u, i, r = ratings(3000)
    print("result:", F.mse_loss(model(u, i), r).item())
