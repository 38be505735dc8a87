import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(37)
USERS, ITEMS = 200, 12
u_true, i_true = torch.randn(USERS, 3), torch.randn(ITEMS, 3)
popularity = torch.cat([torch.tensor([10.0]), torch.ones(ITEMS - 1)])


def ratings(n):
    u = torch.randint(0, USERS, (n,))
    i = torch.multinomial(popularity, n, replacement=True)
    return u, i, (u_true[u] * i_true[i]).sum(1) + 0.1 * torch.randn(n)


class Factor(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.u = nn.Embedding(USERS, dim)
        self.i = nn.Embedding(ITEMS, dim, padding_idx=0)
        nn.init.normal_(self.u.weight, std=0.3)
        with torch.no_grad():
            self.i.weight[1:].normal_(std=0.3)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(1)


data = ratings(8000)
held = ratings(2000)
model = Factor()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(12):
    for idx in torch.randperm(8000).split(100):
        u, i, r = (t[idx] for t in data)
        loss = nn.functional.mse_loss(model(u, i), r)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(*held[:2]), held[2]).item())
