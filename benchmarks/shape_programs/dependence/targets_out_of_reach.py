"""Matrix factorisation of book ratings (one to ten stars)."""
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
READERS, BOOKS = 80, 60
gen = torch.Generator().manual_seed(3)
taste = torch.randn(READERS, 3, generator=gen)
style = torch.randn(BOOKS, 3, generator=gen)
liking = 5.8 + 1.3 * (taste @ style.T) + torch.randn(BOOKS, generator=gen)
stars = (liking + 0.3 * torch.randn(READERS, BOOKS, generator=gen)).round().clamp(1, 10)

cells = torch.randperm(READERS * BOOKS, generator=gen)
fit, held = cells[:3600], cells[3600:]


def lookup(cells):
    u, b = cells // BOOKS, cells % BOOKS
    return u, b, stars[u, b]


class Dot(nn.Module):
    def __init__(self, k=8, y_range=(0.0, 5.5)):
        super().__init__()
        self.low, self.high = y_range
        self.u, self.b = nn.Embedding(READERS, k), nn.Embedding(BOOKS, k)
        self.ub, self.bb = nn.Embedding(READERS, 1), nn.Embedding(BOOKS, 1)
        for e in (self.u, self.b, self.ub, self.bb):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, u, b):
        raw = (self.u(u) * self.b(b)).sum(-1) + (self.ub(u) + self.bb(b)).squeeze(-1)
        return self.low + (self.high - self.low) * torch.sigmoid(raw)


model = Dot()
opt = torch.optim.Adam(model.parameters(), lr=5e-2, weight_decay=1e-5)
for epoch in range(6):
    total = 0.0
    for part in fit[torch.randperm(len(fit), generator=gen)].split(200):
        u, b, r = lookup(part)
        loss = nn.functional.mse_loss(model(u, b), r)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(part)
    print("epoch", epoch, total / len(fit))

model.eval()
with torch.no_grad():
    u, b, r = lookup(held)
    print("RESULT", float((model(u, b) - r).pow(2).mean()))
