import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)


class SetOrSequence(nn.Module):
    def __init__(self, vocab=10, length=8, dim=32, n_out=4):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(1, 1, dim)).repeat(1, length, 1)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.n1 = nn.LayerNorm(dim)
        self.n2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.cls = nn.Linear(dim, n_out)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        n = self.n1(h)
        h = h + self.attn(n, n, n, need_weights=False)[0]
        h = h + self.ff(self.n2(h))
        return self.cls(h.mean(1))


def batch(n):
    ids = torch.randint(10, (n, 8))
    first, last = ids[:, :4].float().mean(1), ids[:, 4:].float().mean(1)
    label = (first > last).long() + 2 * (ids.sum(1) > 36).long()
    return ids, label


class Runner:
    def __init__(self, model, lr=3e-3):
        self.model = model
        decay = [p for p in model.parameters() if p.ndim >= 2]
        rest = [p for p in model.parameters() if p.ndim < 2]
        self.opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01},
                                      {"params": rest, "weight_decay": 0.0}], lr=lr)

    def step(self):
        ids, label = batch(64)
        loss = F.cross_entropy(self.model(ids), label)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return loss.item()

    def run(self, steps):
        for i in range(steps):
            value = self.step()
            if i % 100 == 0:
                print(f"{i} {value:.4f}")


model = SetOrSequence()
Runner(model).run(400)
model.eval()
with torch.no_grad():
    ids, label = batch(2000)
    print("RESULT", F.cross_entropy(model(ids), label).item())
