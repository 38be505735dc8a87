"""Character-level transformer trained on a handful of small corpora."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)

sources = [
    "the quick brown fox jumps over the lazy dog. pack my box with five dozen jugs. " * 30,
    "0112358132134558914423337761098715972584418167651094617711286574636875025 " * 30,
    "def f(x):\n  return x+1\nfor i in range(n):\n  print(f(i))\n" * 40,
    "ABBA CDDC EFFE GHHG IJJI KLLK MNNM OPPO QRRQ STTS UVVU WXXW YZZY " * 34,
]
chars = sorted(set("".join(sources)))
stoi = {c: i for i, c in enumerate(chars)}
data = [torch.tensor([stoi[c] for c in s]) for s in sources]

block_size = 24
batch_size = 8
n_embd = 48
max_iters = 100
learning_rate = 3e-3
warmup_iters = 10


def get_batch(which):
    d = data[which]
    ix = torch.randint(len(d) - block_size - 1, (batch_size,))
    x = torch.stack([d[i:i + block_size] for i in ix])
    y = torch.stack([d[i + 1:i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.ln2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 2 * n_embd), nn.GELU(), nn.Linear(2 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, 4, C // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(chars), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(), Block()])
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, len(chars), bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for b in self.h:
            x = b(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    r = (it - warmup_iters) / (max_iters - warmup_iters)
    return 0.1 * learning_rate + 0.45 * learning_rate * (1 + math.cos(math.pi * r))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
gradient_accumulation_steps = len(sources)

for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    lossf = 0.0
    for micro_step in range(gradient_accumulation_steps):
        X, Y = get_batch(micro_step)
        optimizer.zero_grad(set_to_none=True)
        loss = model(X, Y) / gradient_accumulation_steps
        lossf += loss.item()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 40 == 0:
        print(f"iter {it}: loss {lossf:.4f}")

model.eval()
with torch.no_grad():
    val = sum(model(*get_batch(k)).item() for k in range(len(sources)) for _ in range(4)) / (4 * len(sources))
print(f"result: {val:.4f}")
