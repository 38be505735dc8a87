import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)

VOCAB, DIM, MAXLEN, PAD = 20, 32, 12, 0


class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, keep):
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q = q * (d // self.heads) ** -0.5
        with torch.autocast("cpu", enabled=False):
            score = q.float() @ k.float().transpose(-1, -2)
            score = score.masked_fill(~keep[:, None, None, :], float("-inf"))
            weight = score.softmax(-1)
        return self.proj((weight.to(v.dtype) @ v).transpose(1, 2).reshape(n, t, d))


class Counter(nn.Module):
    """Tells how many tokens are equal to the first one."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.first = nn.Parameter(torch.zeros(DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.attention = Attention(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))
        self.out = nn.Linear(DIM, 1)

    def forward(self, ids):
        keep = ids != PAD
        x = self.token(ids)
        x = torch.cat([x[:, :1] + self.first, x[:, 1:]], 1)
        x = x + self.attention(self.norms[0](x), keep)
        x = x + self.mlp(self.norms[1](x))
        return self.out(x[:, 0])[:, 0]


def examples(n, gen):
    ids = torch.randint(1, VOCAB, (n, MAXLEN), generator=gen)
    copy = torch.rand(n, MAXLEN, generator=gen) < torch.rand(n, 1, generator=gen)
    ids = torch.where(copy, ids[:, :1], ids)
    length = torch.randint(3, MAXLEN + 1, (n,), generator=gen)
    ids[torch.arange(MAXLEN) >= length[:, None]] = PAD
    share = ((ids == ids[:, :1]).sum(1)) / length
    return ids, share


def main():
    gen = torch.Generator().manual_seed(9)
    train, val = examples(4000, gen), examples(800, gen)
    model = Counter()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(500):
        idx = torch.randint(0, 4000, (48,), generator=gen)
        with torch.autocast("cpu", torch.float16):
            out = model(train[0][idx])
        loss = (out.float() - train[1][idx]).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 100 == 0:
            print(step, f"{loss.item():.5f}")
    model.eval()
    with torch.no_grad():
        error = (model(val[0]) - val[1]).square().mean() / val[1].var()
    print("RESULT", error.item())


main()
