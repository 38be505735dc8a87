import inspect
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(50)

VOCAB, SEP, BLOCK, DIM, LAYERS = 24, 0, 32, 48, 2
ACCUM, ITERS, WARMUP, MAX_LR = 4, 220, 30, 4e-3
IGNORE = -100


def stream(n, g):
    """Documents  'question = answer SEP' packed one behind the other."""
    toks, sup = [], []
    while len(toks) < n:
        k = int(torch.randint(3, 6, (1,), generator=g))
        q = torch.randint(4, VOCAB, (k,), generator=g).tolist()
        toks += q + [1] + sorted(q) + [SEP]
        sup += [False] * (k + 1) + [True] * (k + 1)
    return torch.tensor(toks[:n]), torch.tensor(sup[:n])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)
        for m in (self.proj, self.down):
            nn.init.zeros_(m.weight)

    def forward(self, x, mask):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, 4, DIM // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, DIM))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(BLOCK, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.wte.weight, std=0.05)
        nn.init.normal_(self.wpe.weight, std=0.05)
        self.head.weight = self.wte.weight

    def forward(self, idx):
        doc = (idx == SEP).cumsum(1) - (idx == SEP).long()
        mask = (doc[:, :, None] == doc[:, None, :]).tril().unsqueeze(1)
        x = self.wte(idx) + self.wpe.weight[:idx.shape[1]]
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x))


def lr_at(it):
    if it < WARMUP:
        return MAX_LR * it / WARMUP
    return MAX_LR * 0.5 * (1 + math.cos(math.pi * (it - WARMUP) / (ITERS - WARMUP)))


def batch(data, sup, n, g):
    pos = torch.randint(0, len(data) - BLOCK - 1, (n, 1), generator=g) + torch.arange(BLOCK + 1)
    w, s = data[pos], sup[pos]
    return w[:, :-1], torch.where(s[:, 1:], w[:, 1:], IGNORE)


def configure(model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    extra = {"fused": False} if "fused" in inspect.signature(torch.optim.AdamW).parameters else {}
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                             lr=MAX_LR, betas=(0.9, 0.95), **extra)


@torch.no_grad()
def validate(model, data, sup):
    x, y = batch(data, sup, 256, torch.Generator().manual_seed(3))
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE).item()


g = torch.Generator().manual_seed(1)
data, sup = stream(60_000, g)
val = stream(8_000, g)
model = GPT()
opt = configure(model)
for it in range(ITERS):
    for group in opt.param_groups:
        group["lr"] = lr_at(it)
    micro = [batch(data, sup, 16, g) for _ in range(ACCUM)]
    n_tokens = sum((y != IGNORE).sum() for _, y in micro)
    for x, y in micro:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum") / n_tokens
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    if it % 40 == 0:
        print(f"iter {it} lr {lr_at(it):.2e} val {validate(model, *val):.4f}")
print("RESULT", validate(model, *val))
