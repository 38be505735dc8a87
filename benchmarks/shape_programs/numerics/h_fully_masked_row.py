"""Answers from a set of notes that may be empty: a learned blank note is always in the set."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(12)
torch.set_num_threads(1)
DIM, NOTES = 16, 6


def batch(n):
    note = torch.randn(n, NOTES, DIM)
    present = torch.rand(n, NOTES) < 0.4
    present[::9] = False
    which = torch.randint(0, NOTES, (n,))
    query = note[torch.arange(n), which] + 0.2 * torch.randn(n, DIM)
    hit = present[torch.arange(n), which].long()
    return query, note, present, hit


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.blank = nn.Parameter(0.1 * torch.randn(1, 1, DIM))
        self.q, self.kv = nn.Linear(DIM, 32), nn.Linear(DIM, 64)
        self.head = nn.Sequential(nn.Linear(32 + 32, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, query, note, present):
        note = torch.cat([self.blank.expand(len(note), -1, -1), note], 1)
        score_mask = F.pad(present, (1, 0), value=True)[:, None]
        q = self.q(query)[:, None]
        k, v = self.kv(note).chunk(2, -1)
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=score_mask)
        return self.head(torch.cat([got, q * got], -1).squeeze(1))


net = Reader()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
for step in range(150):
    query, note, present, hit = batch(128)
    loss = F.cross_entropy(net(query, note, present), hit)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
with torch.no_grad():
    query, note, present, hit = batch(2000)
    print("RESULT", F.cross_entropy(net(query, note, present), hit).item())
