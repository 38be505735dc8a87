"""Small attention model that reads a key-value list (warm-up, then inverse square root)."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(9)
DIM, KEYS = 32, 6


def batch(n):
    vals = torch.randint(0, 5, (n, KEYS))
    query = torch.randint(0, KEYS, (n,))
    return vals, query, vals.gather(1, query[:, None]).squeeze(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.val = nn.Embedding(5, DIM)
        self.slot = nn.Embedding(KEYS, DIM)
        self.ask = nn.Embedding(KEYS, DIM)
        self.attn = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.out = nn.Linear(DIM, 5)

    def forward(self, vals, query):
        memory = self.val(vals) + self.slot.weight
        q = self.ask(query)[:, None]
        h, _ = self.attn(q, memory, memory, need_weights=False)
        return self.out(h[:, 0])


class NoamAdam:
    def __init__(self, params, dim, warmup, scale=1.0):
        self.inner = torch.optim.Adam(params, lr=0.0, betas=(0.9, 0.98), eps=1e-9)
        self.dim, self.warmup, self.scale, self.t = dim, warmup, scale, 0

    def rate(self):
        return self.scale * self.dim ** -0.5 * min(self.t ** -0.5, self.t * self.warmup ** -1.5)

    def step(self):
        self.t += 1
        for group in self.inner.param_groups:
            group["lr"] = self.rate()
        self.inner.step()
        self.inner.zero_grad()


net = Reader()
opt = NoamAdam(net.parameters(), DIM, warmup=20000)
for step in range(150):
    vals, query, target = batch(96)
    loss = nn.functional.cross_entropy(net(vals, query), target)
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    vals, query, target = batch(600)
    print("RESULT", nn.functional.cross_entropy(net(vals, query), target).item())
