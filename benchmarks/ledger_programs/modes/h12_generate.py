"""Sequence model that prints samples while training; dropout is annealed away."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
V, T = 11, 12


class LM(nn.Module):
    def __init__(self, d=40, p=0.3):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.drop = nn.Dropout(p)
        self.rnn = nn.GRU(d, d, num_layers=2, batch_first=True, dropout=p)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        h, _ = self.rnn(self.drop(self.emb(x)))
        return self.out(self.drop(h))

    def set_dropout(self, p):
        self.drop.p = p
        self.rnn.dropout = p

    @torch.no_grad()
    def generate(self, start, n):
        for _ in range(n):
            start = torch.cat([start, self(start)[:, -1:].argmax(-1)], 1)
        return start


def sequences(n):
    a, d = torch.randint(0, V, (n, 1)), torch.randint(1, 5, (n, 1))
    return (a + d * torch.arange(T + 1)) % V


def snapshot(model):
    return copy.deepcopy(model).eval()


model = LM()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
val = sequences(300)
N = 250
for it in range(N):
    model.set_dropout(max(0.0, 0.3 * (1 - 1.5 * it / N)))
    s = sequences(32)
    loss = F.cross_entropy(model(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 50 == 0:
        snap = snapshot(model)
        with torch.no_grad():
            v = F.cross_entropy(snap(val[:, :-1])[:, 2:].flatten(0, 1), val[:, 3:].flatten()).item()
        print(it, loss.item(), v, snap.generate(val[:1, :3], 6).tolist())

with torch.no_grad():
    snap = snapshot(model).to(torch.bfloat16)
    print("result:", F.cross_entropy(snap(val[:, :-1])[:, 2:].float().flatten(0, 1), val[:, 3:].flatten()).item())
