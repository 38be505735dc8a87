"""Graph regression; the rate is scaled with the batch."""
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
NODES, BASE, BATCH = 9, 0.2, 32


def graphs(n, gen):
    adj = (torch.rand(n, NODES, NODES, generator=gen) < 0.3).float().triu(1)
    adj = adj + adj.transpose(1, 2)
    x = torch.randn(n, NODES, 4, generator=gen)
    y = (adj @ x[..., :1]).tanh().mean((1, 2)) + 0.5 * x[..., 1].mean(1)
    return adj, x, y


class Conv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.near = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, adj, h):
        return self.own(h) + adj @ self.near(h) / 3


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = Conv(4, 32), Conv(32, 32), nn.Linear(32, 1)

    def forward(self, adj, x):
        h = torch.relu(self.a(adj, x))
        h = torch.relu(self.b(adj, h))
        return self.out(h.mean(1)).squeeze(1)


def make_sgd(model, batch):
    return torch.optim.SGD(model.parameters(), lr=BASE * batch, momentum=0.9, nesterov=True)


gen = torch.Generator().manual_seed(1)
model = GNN()
opt = make_sgd(model, BATCH)
for step in range(120):
    adj, x, y = graphs(BATCH, gen)
    opt.zero_grad()
    loss = nn.functional.huber_loss(model(adj, x), y, delta=0.5)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print("step", step, "loss", loss.item())

model.eval()
adj, x, y = graphs(300, gen)
with torch.no_grad():
    print("RESULT", float((model(adj, x) - y).pow(2).mean()))
