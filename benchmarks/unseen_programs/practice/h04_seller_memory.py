"""Spot fraudulent orders with a running memory of each seller, updated by index."""
import torch
torch.set_num_threads(1)
torch.manual_seed(331)
from torch import nn
import torch.nn.functional as F

SELLERS, DIM, WINDOW = 150, 6, 40


def orders(n_windows, gen):
    """Windows of orders; in one window a seller may occur several times."""
    trust = torch.randn(SELLERS, generator=torch.Generator().manual_seed(1))
    direction = torch.randn(DIM, generator=torch.Generator().manual_seed(2))
    for _ in range(n_windows):
        seller = torch.randint(SELLERS, (WINDOW,), generator=gen)
        x = 0.5 * trust[seller, None] * direction
        x = x + torch.randn(WINDOW, DIM, generator=gen)
        logit = -2.5 * trust[seller] - 0.5
        fraud = (torch.rand(WINDOW, generator=gen) < torch.sigmoid(logit)).float()
        yield seller, x, fraud


class SellerMemory:
    def __init__(self, rate=0.15):
        self.state = torch.zeros(SELLERS, DIM + 1)
        self.seen = torch.zeros(SELLERS)
        self.rate = rate

    def read(self, seller):
        return torch.cat([self.state[seller], self.seen[seller, None].clamp(max=10) / 10], 1)

    def write(self, seller, x, fraud):
        facts = torch.cat([x, fraud[:, None]], 1)
        who, back = seller.unique(return_inverse=True)
        count = torch.bincount(back).float()
        mean = torch.zeros(len(who), DIM + 1).index_add(0, back, facts) / count[:, None]
        self.state[who] += self.rate * (mean - self.state[who])
        self.seen[who] += count


class FraudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * DIM + 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, memory):
        return self.net(torch.cat([x, memory], 1)).squeeze(1)


gen = torch.Generator().manual_seed(7)
memory, model = SellerMemory(), FraudNet()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
recent = []
for step, (seller, x, fraud) in enumerate(orders(400, gen)):
    logits = model(x, memory.read(seller))
    loss = F.binary_cross_entropy_with_logits(logits, fraud)
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.write(seller, x, fraud)
    recent.append(loss.item())
    if step % 80 == 79:
        print(f"window {step + 1} loss {sum(recent[-80:]) / 80:.4f}")

model.eval()
losses = []
with torch.no_grad():
    for seller, x, fraud in orders(60, gen):
        logits = model(x, memory.read(seller))
        losses.append(F.binary_cross_entropy_with_logits(logits, fraud))
        memory.write(seller, x, fraud)
print("RESULT", torch.stack(losses).mean().item())
