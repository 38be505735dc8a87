"""Recall a stored record from a damaged copy; the match is worked out in full precision."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(22)
torch.set_num_threads(1)
SLOTS, DIM = 40, 32
records = 40 * torch.randn(SLOTS, DIM)
owner = torch.randint(0, 5, (SLOTS,))


def damaged(n):
    which = torch.randint(0, SLOTS, (n,))
    copy = records[which] + 20 * torch.randn(n, DIM)
    return copy * (torch.rand(n, DIM) > 0.3), owner[which]


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.heat = nn.Parameter(torch.tensor(1e-4))
        self.content = nn.Embedding(SLOTS, 24)
        self.answer = nn.Linear(24, 5)

    def forward(self, copy):
        with torch.autocast("cpu", enabled=False):
            match = torch.einsum("nd,sd->ns", copy.float(), records)
            share = (match * self.heat).softmax(-1)
        return self.answer(share @ self.content.weight)


net = Memory()
opt = torch.optim.Adam([{"params": net.heat, "lr": 1e-5}, {"params": [*net.content.parameters(), *net.answer.parameters()]}], lr=2e-2)
for step in range(120):
    copy, label = damaged(64)
    with torch.autocast("cpu", torch.float16):
        out = net(copy)
    loss = F.cross_entropy(out.float(), label)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
copy, label = damaged(500)
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(copy), label).item())
