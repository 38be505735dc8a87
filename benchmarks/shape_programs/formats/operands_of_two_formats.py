"""Message passing over random molecular graphs; mixed precision sets in after a short warm-up."""
import torch
from torch import nn
from contextlib import nullcontext

torch.manual_seed(0)
torch.set_num_threads(1)
WARMUP = 20


def graph(g, nodes=60, edges=180):
    kind = torch.randint(0, 4, (nodes,), generator=g)
    src = torch.randint(0, nodes, (edges,), generator=g)
    dst = torch.randint(0, nodes, (edges,), generator=g)
    value = torch.tensor([0.5, -1.0, 1.0, 2.0])[kind]
    target = torch.zeros(nodes).index_add_(0, dst, value[src] * value[dst])
    return nn.functional.one_hot(kind, 4).float(), src, dst, target


class Messages(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, h, src, dst):
        sent = self.edge(torch.cat([h[src], h[dst]], -1))
        inbox = torch.zeros(len(h), sent.shape[-1], device=h.device)
        return inbox.index_add_(0, dst, sent)


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.lift = nn.Linear(4, width)
        self.messages = Messages(width)
        self.out = nn.Linear(2 * width, 1)

    def forward(self, x, src, dst):
        h = self.lift(x)
        return self.out(torch.cat([h, self.messages(h, src, dst)], -1)).squeeze(-1)


g = torch.Generator().manual_seed(13)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(120):
    x, src, dst, target = graph(g)
    precision = nullcontext() if step < WARMUP else torch.autocast("cpu", torch.bfloat16)
    with precision:
        out = net(x, src, dst)
    loss = nn.functional.mse_loss(out.float(), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    x, src, dst, target = graph(g)
    print("RESULT", nn.functional.mse_loss(net(x, src, dst), target).item())
