import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
torch.set_num_threads(1)
tokens_per_micro = 8 * 16
micro_per_update = 4
token_budget = 220 * micro_per_update * tokens_per_micro
warmup_tokens = token_budget // 20
max_lr = 4e-3

text = ("she sells sea shells by the sea shore; the shells she sells are surely sea shells. "
        "peter piper picked a peck of pickled peppers. how much wood would a woodchuck chuck? ") * 16
vocab = sorted(set(text))
ids = torch.tensor([vocab.index(c) for c in text])
emb, rnn, head = nn.Embedding(len(vocab), 24), nn.GRU(24, 56, batch_first=True), nn.Linear(56, len(vocab))
params = [*emb.parameters(), *rnn.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(params, lr=0.0, betas=(0.9, 0.95))


def batch():
    ix = torch.randint(len(ids) - 17, (8,))
    w = torch.stack([ids[i:i + 17] for i in ix])
    return w[:, :-1], w[:, 1:]


def loss_on(x, y):
    return F.cross_entropy(head(rnn(emb(x))[0]).flatten(0, 1), y.flatten())


tokens, micro = 0, 0
while tokens < token_budget:
    x, y = batch()
    (loss_on(x, y) / micro_per_update).backward()
    micro += 1
    tokens += x.numel()
    if tokens < warmup_tokens:
        mult = tokens / warmup_tokens
    else:
        mult = 0.5 * (1 + math.cos(math.pi * (tokens - warmup_tokens) / (token_budget - warmup_tokens)))
    optimizer.param_groups[0]["lr"] = max_lr * mult
    if micro % micro_per_update == 0:
        optimizer.step()
        optimizer.zero_grad()
    if micro % 200 == 0:
        print(f"tokens {tokens} lr {max_lr * mult:.2e}")

with torch.no_grad():
    print(f"result: {sum(loss_on(*batch()).item() for _ in range(10)) / 10:.4f}")
