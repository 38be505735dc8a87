"""Small bigram/MLP language model on length-bucketed documents, with gradient accumulation."""
import argparse
import torch
from torch import nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--vocab", type=int, default=24)
parser.add_argument("--dim", type=int, default=32)
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--steps", type=int, default=250)
parser.add_argument("--lr", type=float, default=5e-3)
args = parser.parse_args([])

torch.manual_seed(0)
torch.set_num_threads(1)


def chain(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(3.0 * torch.randn(args.vocab, args.vocab, generator=g), -1)


PROSE, CHAT = chain(1), chain(2)


def document(n, trans, gen):
    out = [int(torch.randint(args.vocab, (1,), generator=gen))]
    for _ in range(n):
        out.append(int(torch.multinomial(trans[out[-1]], 1, generator=gen)))
    return torch.tensor(out)


def make_buckets(gen, n):
    buckets = []
    for i in range(n):
        if i % 2:
            docs = [document(48, PROSE, gen) for _ in range(4)]
        else:
            docs = [document(int(torch.randint(2, 5, (1,), generator=gen)), CHAT, gen) for _ in range(4)]
        buckets.append(nn.utils.rnn.pad_sequence(docs, batch_first=True, padding_value=-100))
    return buckets


gen = torch.Generator().manual_seed(7)
train, valid = make_buckets(gen, 80), make_buckets(gen, 24)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(args.vocab, args.dim)
        self.body = nn.Sequential(nn.Linear(args.dim, 64), nn.GELU(), nn.Linear(64, args.vocab))

    def forward(self, ids):
        return self.body(self.emb(ids.clamp(min=0)))


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
order = torch.Generator().manual_seed(3)
for step in range(args.steps):
    idx = torch.randint(len(train) // 2, (args.accum // 2,), generator=order).tolist()
    window = [train[2 * i] for i in idx] + [train[2 * i + 1] for i in idx]
    n_tok = sum(int((ids[:, 1:] != -100).sum()) for ids in window)
    for ids in window:
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-100)
        (loss / args.accum).backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 50 == 0:
        print(f"step {step} tokens {n_tok}")

with torch.no_grad():
    total, count = 0.0, 0
    for ids in valid:
        tgt = ids[:, 1:].flatten()
        total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), tgt, ignore_index=-100, reduction="sum").item()
        count += int((tgt != -100).sum())
print("RESULT", total / count)
