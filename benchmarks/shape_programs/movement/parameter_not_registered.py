"""Factorization machine for ratings of users and items."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(29)
USERS, ITEMS = 50, 40
taste, style = torch.randn(USERS, 3), torch.randn(ITEMS, 3)
user = torch.randint(0, USERS, (4000,))
item = torch.randint(0, ITEMS, (4000,))
rating = 3 + (taste[user] * style[item]).sum(1) + 0.2 * torch.randn(4000)


class Machine(nn.Module):
    def __init__(self, features, rank):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(()))
        self.linear = nn.Embedding(features, 1)
        self.factors = nn.Parameter(0.1 * torch.randn(rank, features)).t()
        nn.init.zeros_(self.linear.weight)

    def forward(self, active):
        v = self.factors[active]
        square_of_sum = v.sum(1).square()
        sum_of_square = v.square().sum(1)
        pairs = 0.5 * (square_of_sum - sum_of_square).sum(1)
        return self.offset + self.linear(active).sum((1, 2)) + pairs


active = torch.stack([user, item + USERS], 1)
net = Machine(USERS + ITEMS, rank=6)
opt = torch.optim.Adam(net.parameters(), lr=0.05)
for step in range(150):
    rows = torch.randint(0, 3200, (256,))
    loss = nn.functional.mse_loss(net(active[rows]), rating[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(active[3200:]), rating[3200:]).item())
