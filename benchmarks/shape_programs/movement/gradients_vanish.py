"""Gated tower for sequences of symbols (bag-of-positions encoder)."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)

LENGTH, SYMBOLS = 10, 8
seqs = torch.randint(0, SYMBOLS, (1000, LENGTH))
first = seqs[:, :5].eq(2).sum(1)
last = seqs[:, 5:].eq(5).sum(1)
answer = (first > last).long() + 2 * (seqs[:, 0] > 3).long()


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.change = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, h):
        g = torch.sigmoid(self.gate(h))
        return g * torch.tanh(self.change(h))


class Tower(nn.Module):
    def __init__(self, width=40, depth=10):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, 8)
        self.enter = nn.Linear(8 * LENGTH, width)
        self.layers = nn.ModuleList(Gated(width) for _ in range(depth))
        self.leave = nn.Linear(width, 4)

    def forward(self, s):
        h = torch.tanh(self.enter(self.embed(s).flatten(1)))
        for layer in self.layers:
            h = layer(h)
        return self.leave(h)


net = Tower()
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
for step in range(150):
    rows = torch.randint(0, 800, (64,))
    loss = nn.functional.cross_entropy(net(seqs[rows]), answer[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(seqs[800:]), answer[800:]).item())
