"""Which members of a social network will leave? The strongest signal among the neighbours matters."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(15)
torch.set_num_threads(1)


def network(n=150, links=420):
    x = torch.randn(n, 6)
    src, dst = torch.randint(0, n, (2, links))
    best = torch.zeros(n).scatter_reduce(0, dst, x[src, 0], "amax")
    return x, src, dst, ((best + 0.5 * x[:, 1]) > 1.0).float()


class Strongest(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.message, self.own = nn.Linear(inp, out), nn.Linear(inp, out)
        self.mix = nn.Linear(2 * out, out)

    def forward(self, x, src, dst):
        m = self.message(x)[src]
        near = torch.full((len(x), m.shape[1]), float("-inf"))
        near = near.scatter_reduce(0, dst[:, None].expand_as(m), m, "amax")
        return F.elu(self.mix(torch.cat([self.own(x), near], 1)))


class Leaver(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Strongest(6, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x, src, dst):
        return self.out(self.first(x, src, dst)).squeeze(1)


net = Leaver()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(80):
    x, src, dst, leaves = network()
    loss = F.binary_cross_entropy_with_logits(net(x, src, dst), leaves)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
x, src, dst, leaves = network(600, 1680)
with torch.no_grad():
    print("RESULT", F.binary_cross_entropy_with_logits(net(x, src, dst), leaves).item())
