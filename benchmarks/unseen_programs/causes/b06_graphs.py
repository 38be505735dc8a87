"""Graph attention over small molecules-like graphs, run in bfloat16."""
import math

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
NODES, FEATS, DIM = 10, 5, 32


def make_graphs(n, gen):
    x = torch.randn(n, NODES, FEATS, generator=gen)
    density = 0.22 + 0.3 * torch.rand(n, 1, 1, generator=gen)
    upper = (torch.rand(n, NODES, NODES, generator=gen) < density).float().triu(1)
    adj = upper + upper.transpose(1, 2)
    ring = torch.eye(NODES).roll(1, 1)
    sparse = torch.rand(n, 1, 1, generator=gen) < 0.003
    adj = torch.where(sparse, adj, ((adj + ring + ring.T) > 0).float())
    deg = adj.sum(-1).clamp(min=1)
    neigh = (adj @ x[..., :1]).squeeze(-1) / deg
    y = (neigh * x[..., 1]).sum(-1) + 0.5 * x[..., 2].mean(-1)
    return x, adj, y


class NeighbourAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, h, adj):
        scores = self.q(h) @ self.k(h).transpose(1, 2) / math.sqrt(h.shape[-1])
        blocked = torch.zeros_like(adj).masked_fill(adj == 0, torch.finfo(adj.dtype).min)
        weights = (scores + blocked.to(scores.dtype)).softmax(-1)
        return h + self.out(torch.cat([h, weights @ self.v(h)], -1))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATS, DIM)
        self.layers = nn.ModuleList([NeighbourAttention(DIM) for _ in range(2)])
        self.head = nn.Linear(DIM, 1)

    def forward(self, x, adj):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, adj)
        return self.head(h).squeeze(-1).sum(-1)


def step(model, opt, x, adj, y):
    with torch.autocast("cpu", torch.bfloat16):
        pred = model(x, adj)
    loss = F.mse_loss(pred.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.manual_seed(4)
    gen = torch.Generator().manual_seed(9)
    train, test = make_graphs(3000, gen), make_graphs(500, gen)
    model = GraphNet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(8):
        perm = torch.randperm(3000, generator=gen)
        losses = [step(model, opt, *(t[i] for t in train)) for i in perm.split(32)]
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        pred = model(test[0], test[1])
    print("RESULT", F.mse_loss(pred.float(), test[2]).item())


if __name__ == "__main__":
    main()
