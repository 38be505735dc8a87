"""Tiny character model with shared input/output embeddings, evaluated in bfloat16."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
text = ("the quick brown fox jumps over the lazy dog and then the dog sleeps while the fox runs away. " * 20)
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
V, D, T = len(chars), 32, 16
train_ids, val_ids = ids[: int(0.8 * len(ids))], ids[int(0.8 * len(ids)):]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(V, D)
        self.rnn = nn.GRU(D, D, batch_first=True)
        self.ln = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x):
        h, _ = self.rnn(self.wte(x))
        return self.lm_head(self.ln(h))


def get_batch(src, n=16):
    i = torch.randint(0, len(src) - T - 1, (n,))
    x = torch.stack([src[j:j + T] for j in i])
    y = torch.stack([src[j + 1:j + T + 1] for j in i])
    return x, y


@torch.no_grad()
def estimate(model, n=5):
    m = copy.deepcopy(model).to(torch.bfloat16).eval()
    out = []
    for _ in range(n):
        x, y = get_batch(val_ids, 32)
        out.append(F.cross_entropy(m(x).float().flatten(0, 1), y.flatten()).item())
    return sum(out) / n


model = LM()
nn.init.normal_(model.wte.weight, std=0.1)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
print("params", sum(p.numel() for p in model.parameters()))
for it in range(200):
    x, y = get_batch(train_ids)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 50 == 0:
        print(it, loss.item(), estimate(model))
print("result:", estimate(model))
