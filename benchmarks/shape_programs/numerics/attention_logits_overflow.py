"""Recall a stored record from a damaged copy: one step of an associative memory."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(21)
torch.set_num_threads(1)
SLOTS, DIM, SHARP = 40, 32, 8.0
records = torch.randint(-60, 61, (SLOTS, DIM)).float()
owner = torch.randint(0, 5, (SLOTS,))


def damaged(n):
    which = torch.randint(0, SLOTS, (n,))
    copy = records[which] + 18 * torch.randn(n, DIM)
    return copy * (torch.rand(n, DIM) > 0.3), owner[which]


class Memory(nn.Module):
    def __init__(self, sharp):
        super().__init__()
        self.sharp = sharp
        self.ask = nn.Linear(DIM, DIM)
        self.index = nn.Linear(DIM, DIM)
        for map_ in (self.ask, self.index):
            nn.init.eye_(map_.weight)
        self.content = nn.Embedding(SLOTS, 24)
        self.answer = nn.Linear(24, 5)

    def forward(self, copy):
        q = self.sharp * self.ask(copy)
        match = torch.einsum("nd,sd->ns", q, self.index(records))
        return self.answer(match.softmax(-1) @ self.content.weight)


net = Memory(SHARP)
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
for step in range(150):
    copy, label = damaged(64)
    with torch.autocast("cpu", torch.float16):
        out = net(copy)
    loss = F.cross_entropy(out.float(), label)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(net)
    if step % 50 == 0:
        print(step, loss.item())
copy, label = damaged(500)
with torch.no_grad():
    print("RESULT", F.cross_entropy(ema(copy), label).item())
