"""Look-back task on long positions: attention with rotary embeddings in a bf16 model body."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1)

LENGTH, VOCAB, DIM = 24, 8, 32


def rotary(x, start):
    half = x.shape[-1] // 2
    pos = torch.arange(start, start + x.shape[-2], dtype=x.dtype)
    freq = 1.0 / (200 ** (torch.arange(half, dtype=x.dtype) / half))
    angle = pos[:, None] * freq[None]
    sin, cos = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class LookBack(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.q = nn.Linear(DIM, DIM)
        self.k = nn.Linear(DIM, DIM)
        self.v = nn.Linear(DIM, DIM)
        self.out = nn.Sequential(nn.LayerNorm(2 * DIM), nn.Linear(2 * DIM, 64), nn.GELU(), nn.Linear(64, VOCAB))

    def forward(self, ids, start):
        h = self.emb(ids)
        q, k = rotary(self.q(h), start), rotary(self.k(h), start)
        att = F.scaled_dot_product_attention(q, k, self.v(h), is_causal=True)
        return self.out(torch.cat([h, att.to(h.dtype)], -1))


def batch(n):
    ids = torch.randint(VOCAB, (n, LENGTH))
    target = torch.roll(ids, 3, 1)
    # windows are cut out of a long document
    start = int(torch.randint(1000, 4000, (1,)))
    return ids, target, start


model = LookBack()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)


def loss_of(ids, target, start):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids, start)
    return F.cross_entropy(logits[:, 3:].float().flatten(0, 1), target[:, 3:].flatten())


for step in range(400):
    loss = loss_of(*batch(24))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, loss.item())

model.eval()
with torch.no_grad():
    print("RESULT", sum(loss_of(*batch(64)).item() for _ in range(8)) / 8)
