"""Fine-tunes a small recurrent language model on instruction data with gradient accumulation."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

IGNORE, PAD = -100, 0


@dataclass
class Recipe:
    vocab: int = 48
    dim: int = 64
    micro_batch: int = 8
    grad_accum: int = 6
    max_steps: int = 90
    lr: float = 4e-3
    clip: float = 1.0
    log_every: int = 18


class Packed:
    """Prompts with either a one-token verdict or a long written-out answer."""

    def __init__(self, n, vocab, rule, long_share):
        self.rows = []
        for _ in range(n):
            prompt = torch.randint(8, vocab, (4,)).tolist()
            if torch.rand(()) < long_share:
                tok, answer = prompt[-1], []
                for _ in range(26):
                    tok = int(rule[tok]) if torch.rand(()) < 0.93 else int(torch.randint(8, vocab,
                                                                                         ()))
                    answer.append(tok)
                self.rows.append(([2] + prompt, answer + [1]))
            else:
                self.rows.append(([3] + prompt, [int(torch.randint(4, 8, ()))]))

    def __len__(self):
        return len(self.rows)

    def collate(self, idx):
        rows = [self.rows[i] for i in idx]
        width = max(len(p) + len(a) for p, a in rows)
        ids = torch.full((len(rows), width), PAD)
        labels = torch.full((len(rows), width), IGNORE)
        for r, (p, a) in enumerate(rows):
            ids[r, :len(p) + len(a)] = torch.tensor(p + a)
            labels[r, len(p):len(p) + len(a)] = torch.tensor(a)
        return ids[:, :-1], labels[:, 1:]


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=PAD)
        self.rnn = nn.GRU(cfg.dim, cfg.dim, batch_first=True)
        self.norm = nn.LayerNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        return self.out(self.norm(self.rnn(self.emb(ids))[0]))


def length_grouped(ds, micro):
    """Group rows of like length into one micro batch, then shuffle the groups."""
    order = sorted(torch.randperm(len(ds)).tolist(), key=lambda i: len(ds.rows[i][1]))
    groups = [order[i:i + micro] for i in range(0, len(order) - micro + 1, micro)]
    return [groups[i] for i in torch.randperm(len(groups)).tolist()]


@torch.no_grad()
def validate(model, ds):
    model.eval()
    total = count = 0.0
    for start in range(0, len(ds), 50):
        ids, labels = ds.collate(range(start, min(start + 50, len(ds))))
        total += float(F.cross_entropy(model(ids).transpose(1, 2), labels, reduction="sum",
                                       ignore_index=IGNORE))
        count += float((labels != IGNORE).sum())
    model.train()
    return total / count


def train(cfg):
    rule = torch.randperm(cfg.vocab - 8) + 8
    rule = torch.cat([torch.arange(8), rule])
    train_ds, val_ds = Packed(1600, cfg.vocab, rule, 0.12), Packed(300, cfg.vocab, rule, 0.12)
    model = LM(cfg)
    opt = torch.optim.SGD(model.parameters(), lr=0.6, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.max_steps)
    step, micro_step, running, num_tokens = 0, 0, 0.0, 0
    while step < cfg.max_steps:
        for group in length_grouped(train_ds, cfg.micro_batch):
            ids, labels = train_ds.collate(group)
            current = int((labels != IGNORE).sum())
            num_tokens += current
            loss = F.cross_entropy(model(ids).transpose(1, 2), labels, ignore_index=IGNORE)
            loss = loss / cfg.grad_accum
            loss.backward()
            running += loss.item()
            micro_step += 1
            if micro_step % cfg.grad_accum:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            opt.step()
            opt.zero_grad()
            sched.step()
            step += 1
            if step % cfg.log_every == 0:
                print(f"step {step} loss {running:.4f} tokens {num_tokens} "
                      f"val {validate(model, val_ds):.4f}")
            running, num_tokens = 0.0, 0
            if step == cfg.max_steps:
                break
    return validate(model, val_ds)


print("RESULT", round(train(Recipe()), 5))
