from dataclasses import dataclass, field
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)


@dataclass
class Config:
    cards: dict = field(default_factory=lambda: {"shop": 60, "day": 7, "item": 90})
    dim: int = 2
    lr: float = 1e-2
    steps: int = 700


def build(cfg, n):
    g = torch.Generator().manual_seed(5)
    effects = {k: torch.randn(c, generator=g) for k, c in cfg.cards.items()}
    cols = {k: torch.randint(0, c, (n,)) for k, c in cfg.cards.items()}
    score = sum(effects[k][cols[k]] for k in cfg.cards)
    return cols, (score + 0.3 * torch.randn(n) > 0).float()


class TabNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tables = {k: nn.Embedding(c, cfg.dim) for k, c in cfg.cards.items()}
        self.mlp = nn.Sequential(nn.Linear(cfg.dim * len(cfg.cards), 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, cols):
        parts = [table(cols[k]) for k, table in self.tables.items()]
        return self.mlp(torch.cat(parts, dim=1)).squeeze(1)


cfg = Config()
train_cols, train_y = build(cfg, 6000)
val_cols, val_y = build(cfg, 1500)
net = TabNet(cfg)
opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
for step in range(cfg.steps):
    idx = torch.randint(0, len(train_y), (128,))
    logits = net({k: v[idx] for k, v in train_cols.items()})
    loss = F.binary_cross_entropy_with_logits(logits, train_y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, round(loss.item(), 4))
net.eval()
with torch.no_grad():
    wrong = ((net(val_cols) > 0).float() != val_y).float().mean()
print("RESULT", wrong.item())
