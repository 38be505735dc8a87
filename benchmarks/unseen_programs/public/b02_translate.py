"""Trains an encoder-decoder attention model to translate short synthetic sentences."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

PAD, BOS, EOS, FIRST = 0, 1, 2, 3
SRC_VOCAB, TGT_VOCAB, MAX_LEN = 40, 40, 9


def make_corpus(n):
    """Reverse-and-substitute language; words outside the source vocabulary are dropped."""
    table = torch.randperm(TGT_VOCAB - FIRST) + FIRST
    src = torch.zeros(n, MAX_LEN, dtype=torch.long)
    tgt = torch.zeros(n, MAX_LEN + 2, dtype=torch.long)
    for i in range(n):
        length = int(torch.randint(2, MAX_LEN + 1, (1,)))
        words = torch.randint(FIRST, SRC_VOCAB + 14, (length,))
        out = [BOS] + [int(table[w - FIRST]) for w in words.flip(0) if w < SRC_VOCAB] + [EOS]
        known = words[words < SRC_VOCAB]
        src[i, :len(known)] = known
        tgt[i, :len(out)] = torch.tensor(out)
    return src, tgt


class ScaledDotProductAttention(nn.Module):
    def __init__(self, d_k, dropout=0.1):
        super().__init__()
        self.temper = math.sqrt(d_k)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / self.temper
        scores = scores.masked_fill(mask.unsqueeze(1), -float("inf"))
        return self.dropout(F.softmax(scores, dim=-1)) @ v


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.proj = (nn.Linear(d_model, d_model) for _ in range(4))
        self.attention = ScaledDotProductAttention(d_model // n_head)
        self.norm = nn.LayerNorm(d_model)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_head, -1).transpose(1, 2)

    def forward(self, q, kv, mask):
        out = self.attention(self.split(self.w_q(q)), self.split(self.w_k(kv)),
                             self.split(self.w_v(kv)), mask)
        return self.norm(q + self.proj(out.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_inner):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_model, d_inner), nn.ReLU(),
                                 nn.Linear(d_inner, d_model))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        return self.norm(x + self.net(x))


def padding_mask(seq_q, seq_k):
    return seq_k.eq(PAD).unsqueeze(1).expand(-1, seq_q.shape[1], -1)


def subsequent_mask(seq):
    size = seq.shape[1]
    return torch.ones(size, size, dtype=torch.bool).triu(1).unsqueeze(0)


class Transformer(nn.Module):
    def __init__(self, d_model=48, n_head=4, n_layers=2):
        super().__init__()
        self.src_emb = nn.Embedding(SRC_VOCAB, d_model, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(TGT_VOCAB, d_model, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(MAX_LEN + 2, d_model) * 0.5)
        self.enc = nn.ModuleList(nn.ModuleList([MultiHeadAttention(d_model, n_head),
                                                FeedForward(d_model, 96)]) for _ in range(n_layers))
        self.dec = nn.ModuleList(nn.ModuleList([MultiHeadAttention(d_model, n_head),
                                                MultiHeadAttention(d_model, n_head),
                                                FeedForward(d_model, 96)]) for _ in range(n_layers))
        self.out = nn.Linear(d_model, TGT_VOCAB, bias=False)

    def forward(self, src, tgt):
        mem = self.src_emb(src) + self.pos[:src.shape[1]]
        for attn, ffn in self.enc:
            mem = ffn(attn(mem, mem, padding_mask(src, src)))
        x = self.tgt_emb(tgt) + self.pos[:tgt.shape[1]]
        for slf, cross, ffn in self.dec:
            x = slf(x, x, padding_mask(tgt, tgt) | subsequent_mask(tgt))
            x = ffn(cross(x, mem, padding_mask(tgt, src)))
        return self.out(x)


def performance(model, src, tgt):
    gold = tgt[:, 1:].reshape(-1)
    logits = model(src, tgt[:, :-1]).reshape(-1, TGT_VOCAB)
    loss = F.cross_entropy(logits, gold, ignore_index=PAD)
    hits = (logits.argmax(-1).eq(gold) & gold.ne(PAD)).sum()
    return loss, float(hits) / float(gold.ne(PAD).sum())


src, tgt = make_corpus(1900)
train, val = (src[:1600], tgt[:1600]), (src[1600:], tgt[1600:])
model = Transformer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 40))
for epoch in range(6):
    model.train()
    for idx in torch.randperm(1600).split(50):
        loss, acc = performance(model, train[0][idx], train[1][idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        v_loss, v_acc = performance(model, *val)
    print(f"[ Epoch {epoch} ] train loss {loss:.3f} acc {100 * acc:.1f} % "
          f"| valid loss {v_loss:.3f} acc {100 * v_acc:.1f} %")
print("RESULT", round(float(v_loss), 5))
