"""Trains a small tied-embedding language model with bfloat16 autocast and summed-token losses."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(139)

VOCAB, BLOCK, DIM, HEADS, LAYERS = 48, 32, 48, 4, 2
MICRO, ACCUM, ITERS, WARMUP, LR, Z_LOSS = 8, 3, 130, 15, 6e-3, 1e-4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1) * 4, F.normalize(k, dim=-1) * 4
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.out(F.relu(self.fc(self.ln2(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(BLOCK, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.wte.weight, std=0.05)
        nn.init.normal_(self.wpe.weight, std=0.05)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets, reduction):
        x = self.wte(idx) + self.wpe.weight[:idx.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = 15 * torch.tanh(self.lm_head(self.norm(x)).float() / 15)
        keep = (targets >= 0).float()
        z = (torch.logsumexp(logits, -1).square() * keep).sum()
        ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1,
                             reduction="sum")
        return ce + Z_LOSS * z if reduction == "train" else ce / keep.sum()


def documents(n, table):
    ids = torch.randint(0, VOCAB, (n, BLOCK + 1))
    for t in range(1, BLOCK + 1):
        ids[:, t] = torch.where(torch.rand(n) < 0.8, table[ids[:, t - 1], t % 2], ids[:, t])
    x, y = ids[:, :-1], ids[:, 1:].clone()
    y[torch.arange(BLOCK) < torch.randint(2, 16, (n, 1))] = -1
    return x, y


def lr_at(it):
    if it < WARMUP:
        return LR * it / WARMUP
    return 0.1 * LR + 0.45 * LR * (1 + math.cos(math.pi * (it - WARMUP) / (ITERS - WARMUP)))


table = torch.randint(0, VOCAB, (VOCAB, 2))
train, val = documents(2500, table), documents(200, table)
model = GPT()
named = list(model.named_parameters())
groups = [{"params": [p for n, p in named if p.ndim == 2 and "wte" not in n], "weight_decay": 0.1},
          {"params": [p for n, p in named if p.ndim < 2 or "wte" in n], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
for it in range(ITERS):
    for group in optimizer.param_groups:
        group["lr"] = lr_at(it)
    batches = [tuple(t[i] for t in train) for i in torch.randint(0, 2500, (ACCUM, MICRO))]
    num_items = sum((y >= 0).sum() for _, y in batches)
    total = 0.0
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x, y, "train") / num_items
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if (it + 1) % 26 == 0:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            v = model(*val, "eval").item()
        print(f"iter {it + 1} loss {total:.4f} val {v:.4f} lr {lr_at(it):.2e}")
print("RESULT", round(v, 5))
