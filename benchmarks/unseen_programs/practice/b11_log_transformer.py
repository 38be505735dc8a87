"""Train a small half-precision transformer that predicts the next event type in server logs."""
import torch
torch.set_num_threads(1)
torch.manual_seed(70)
from torch import nn
import torch.nn.functional as F

CFG = dict(events=24, length=16, dim=32, heads=2, layers=1, batch=24, steps=120, lr=5e-3)


def event_logs(n, seed):
    g = torch.Generator().manual_seed(9)
    table = F.softmax(torch.randn(CFG["events"], CFG["events"], generator=g) * 2.5, 1)
    g = torch.Generator().manual_seed(seed)
    out = [torch.randint(CFG["events"], (n,), generator=g)]
    for _ in range(CFG["length"]):
        out.append(torch.multinomial(table[out[-1]], 1, generator=g)[:, 0])
    return torch.stack(out, 1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -1e9)
        mixed = scores.softmax(-1).to(v.dtype) @ v
        return self.proj(mixed.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class LogModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(CFG["events"], CFG["dim"])
        self.place = nn.Embedding(CFG["length"], CFG["dim"])
        self.blocks = nn.Sequential(
            *[Block(CFG["dim"], CFG["heads"]) for _ in range(CFG["layers"])])
        self.head = nn.Linear(CFG["dim"], CFG["events"])

    def forward(self, x):
        h = self.token(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.blocks(h))


def next_event_loss(model, seq):
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(seq[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), seq[:, 1:].flatten())


train, val = event_logs(2000, 1), event_logs(200, 2)
model = LogModel()
opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"])
scaler = torch.amp.GradScaler("cpu")
for step in range(CFG["steps"]):
    rows = torch.randint(len(train), (CFG["batch"],))
    loss = next_event_loss(model, train[rows])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

with torch.no_grad():
    print("RESULT", next_event_loss(model, val).item())
