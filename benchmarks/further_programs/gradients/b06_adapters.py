import math
import warnings
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(4)


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.s = alpha / rank

    def forward(self, x):
        return self.base(x) + self.s * F.linear(F.linear(x, self.a), self.b)


class Model(nn.Module):
    def __init__(self, vocab=40, dim=32, depth=2, n_out=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim)) for _ in range(depth))
        self.head = nn.Linear(dim, n_out)
        self.checkpointing = False

    def body(self, h):
        for block in self.blocks:
            h = h + block(h)
        return h

    def forward(self, ids):
        h = self.embed(ids).mean(1)
        if self.checkpointing and self.training:
            h = checkpoint(self.body, h, use_reentrant=True)
        else:
            h = self.body(h)
        return self.head(h)


def corpus(n, seed, table):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(40, (n, 4), generator=g)
    s = table[ids].mean(1)
    return ids, (torch.sin(2.5 * s)).argmax(1)


def fit(model, ids, y, steps, lr):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        i = torch.randint(len(ids), (64,))
        loss = F.cross_entropy(model(ids[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


model = Model()
print("base", fit(model, *corpus(3000, 1, torch.randn(40, 6)), 300, 5e-3))
model.embed.requires_grad_(False)
for block in model.blocks:
    block[0].requires_grad_(False)
    block[1], block[3] = LoRALinear(block[1], 8), LoRALinear(block[3], 8)
model.head.reset_parameters()
model.checkpointing = True
table = torch.randn(40, 6)
print("adapted", fit(model.train(), *corpus(3000, 2, table), 500, 5e-3))

model.eval()
ids, y = corpus(2000, 3, table)
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(ids), y).item())
