import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)

# i/o
eval_iters = 8
log_interval = 56
# data
gradient_accumulation_steps = 4
batch_size = 8
block_size = 16
# optimizer
learning_rate = 4e-3
max_iters = 168
weight_decay = 1e-1
beta1, beta2 = 0.9, 0.95
grad_clip = 1.0
# schedule
warmup_iters = 10
lr_decay_iters = max_iters // gradient_accumulation_steps
min_lr = 0.0

text = ("in the beginning the machine wrote one line and then it wrote another. "
        "every line was longer than the last, until the page was full and the night was over. "
        "then it turned the page and counted: one, two, three, five, eight, thirteen. ") * 12
vocab = sorted(set(text))
ids = torch.tensor([vocab.index(c) for c in text])
train_data, val_data = ids[:int(0.9 * len(ids))], ids[int(0.9 * len(ids)):]


def get_batch(split):
    d = train_data if split == "train" else val_data
    ix = torch.randint(len(d) - block_size - 1, (batch_size,))
    return (torch.stack([d[i:i + block_size] for i in ix]), torch.stack([d[i + 1:i + 1 + block_size] for i in ix]))


class LM(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.emb = nn.Embedding(len(vocab), 24)
        self.gru = nn.GRU(24, width, batch_first=True)
        self.lm_head = nn.Linear(width, len(vocab))

    def forward(self, idx, targets):
        logits = self.lm_head(self.gru(self.emb(idx))[0])
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {s: sum(model(*get_batch(s))[1].item() for _ in range(eval_iters)) / eval_iters for s in ("train", "val")}
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return min_lr + coeff * (learning_rate - min_lr)


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(beta1, beta2), weight_decay=weight_decay)

X, Y = get_batch("train")
t0 = time.time()
for iter_num in range(max_iters):
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    for micro_step in range(gradient_accumulation_steps):
        _, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        losses = estimate_loss()
        print(f"iter {iter_num}: train {losses['train']:.4f} val {losses['val']:.4f}")

print(f"result: {estimate_loss()['val']:.4f}")
