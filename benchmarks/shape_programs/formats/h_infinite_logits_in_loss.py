"""Next-item prediction where items out of stock are excluded; nobody buys those."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
ITEMS, USERS = 40, 60
truth = torch.randn(USERS, 4) @ torch.randn(4, ITEMS) * 1.5


def purchases(n, g):
    user = torch.randint(0, USERS, (n,), generator=g)
    stock = torch.rand(n, ITEMS, generator=g) < 0.7
    stock[:, 0] = True
    penalty = torch.zeros(n, ITEMS)
    penalty[~stock] = -torch.inf
    bought = torch.multinomial((truth[user] + penalty).softmax(-1), 1, generator=g).squeeze(1)
    return user, penalty, bought


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, 8)
        self.item = nn.Parameter(0.3 * torch.randn(8, ITEMS))

    def forward(self, user, penalty):
        return self.user(user) @ self.item + penalty


g = torch.Generator().manual_seed(2)
model = Factors()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
for step in range(150):
    user, penalty, bought = purchases(256, g)
    loss = F.cross_entropy(model(user, penalty), bought)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
with torch.no_grad():
    user, penalty, bought = purchases(2000, g)
    print("RESULT", F.nll_loss(model(user, penalty).log_softmax(-1), bought).item())
