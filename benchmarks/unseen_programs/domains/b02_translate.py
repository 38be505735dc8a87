import random

import torch
from torch import nn

torch.set_num_threads(1)
random.seed(0)
torch.manual_seed(0)

PAD, BOS, EOS = 0, 1, 2
SRC_WORDS, TGT_WORDS = 20, 20
MAX_LEN = 8
lexicon = list(range(3, 3 + TGT_WORDS))
random.shuffle(lexicon)


def make_pair():
    n = random.randint(3, MAX_LEN - 1)
    src = [random.randint(3, 2 + SRC_WORDS) for _ in range(n)]
    tgt = [lexicon[w - 3] for w in src]
    if n > 3:
        tgt[0], tgt[1] = tgt[1], tgt[0]
    return src, tgt


def collate(pairs):
    src = torch.full((len(pairs), MAX_LEN + 1), PAD)
    tgt = torch.full((len(pairs), MAX_LEN + 1), PAD)
    for i, (s, t) in enumerate(pairs):
        src[i, :len(s) + 1] = torch.tensor(s + [EOS])
        tgt[i, :len(t) + 2] = torch.tensor([BOS] + t + [EOS])
    return src, tgt


class Seq2Seq(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.src_emb = nn.Embedding(3 + SRC_WORDS, dim, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(3 + TGT_WORDS, dim, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(MAX_LEN + 2, dim) * 0.1)
        self.core = nn.Transformer(dim, heads, 1, 2, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(dim, 3 + TGT_WORDS)

    def forward(self, src, tgt_in):
        n = tgt_in.shape[1]
        src_keys = src.ne(PAD)
        causal = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
        s = self.src_emb(src) + self.pos[:src.shape[1]]
        t = self.tgt_emb(tgt_in) + self.pos[:n]
        h = self.core(s, t, tgt_mask=causal, src_key_padding_mask=src_keys, memory_key_padding_mask=src_keys)
        return self.out(h)


@torch.no_grad()
def greedy(model, src):
    model.eval()
    ys = torch.full((src.shape[0], 1), BOS)
    for _ in range(MAX_LEN):
        nxt = model(src, ys)[:, -1].argmax(-1, keepdim=True)
        ys = torch.cat([ys, nxt], 1)
    return ys


def word_error(model, pairs):
    src, tgt = collate(pairs)
    hyp = greedy(model, src)
    ref, hyp = tgt[:, 1:], hyp[:, 1:]
    keep = ref != PAD
    return (hyp[keep] != ref[keep]).float().mean().item()


train = [make_pair() for _ in range(4000)]
valid = [make_pair() for _ in range(300)]
model = Seq2Seq()
criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 40)

for epoch in range(6):
    model.train()
    random.shuffle(train)
    running = 0.0
    for i in range(0, len(train), 64):
        src, tgt = collate(train[i:i + 64])
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, logits.shape[-1]), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        running += loss.item()
    print(f"epoch {epoch} loss {running / (len(train) / 64):.3f} wer {word_error(model, valid):.3f}")

print("RESULT", word_error(model, valid))
