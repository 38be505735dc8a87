"""Add domain tokens to a pretrained bag-of-tokens scorer; the old rows stay as they were."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(8)
torch.set_num_threads(1)
OLD, NEW, D = 30, 20, 16


class Scorer(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, D)
        self.mlp = nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        return self.mlp(self.emb(ids).sum(1)).squeeze(-1)


value = torch.randn(OLD + NEW)


def batch(n, hi):
    ids = torch.randint(0, hi, (n, 6))
    return ids, value[ids].sum(1)


def run(model, hi, steps, lr, params):
    opt = torch.optim.Adam(params, lr=lr)
    for s in range(steps):
        ids, y = batch(64, hi)
        loss = F.mse_loss(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 100 == 0:
            print(s, round(loss.item(), 4))


def resize_embeddings(model, n_total):
    old = model.emb.weight.data
    emb = nn.Embedding(n_total, D)
    emb.weight.data[: old.size(0)] = old
    rows = torch.arange(n_total).unsqueeze(1)
    emb.weight.register_hook(lambda g: g * (rows < old.size(0)))
    model.emb = emb


model = Scorer(OLD)
run(model, OLD, 300, 1e-2, model.parameters())
resize_embeddings(model, OLD + NEW)
for p in model.mlp.parameters():
    p.requires_grad_(False)
run(model, OLD + NEW, 400, 1e-2, [model.emb.weight])

with torch.no_grad():
    ids, y = batch(2000, OLD + NEW)
    print("result:", F.mse_loss(model(ids), y).item())
