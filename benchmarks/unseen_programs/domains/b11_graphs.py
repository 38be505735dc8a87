from typing import NamedTuple

import torch
from torch import Tensor, nn

torch.set_num_threads(1)
torch.manual_seed(31)


class Graph(NamedTuple):
    x: Tensor
    edges: Tensor
    label: int


def random_molecule(g):
    """Two kinds of molecules: in kind 1 like atoms bond, in kind 0 unlike atoms bond."""
    n = int(torch.randint(8, 15, (1,), generator=g))
    charge = torch.randint(0, 2, (n,), generator=g)
    label = int(torch.randint(0, 2, (1,), generator=g))
    edges = []
    for i in range(n):
        for j in range(i + 1, n):
            same = bool(charge[i] == charge[j])
            p = 0.42 if same == bool(label) else 0.1
            if torch.rand(1, generator=g) < p:
                edges += [(i, j), (j, i)]
    if not edges:
        edges = [(0, 1), (1, 0)]
    x = torch.cat([nn.functional.one_hot(charge, 2).float(), torch.randn(n, 2, generator=g) * 0.5], 1)
    return Graph(x, torch.tensor(edges).T, label)


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    return [random_molecule(g) for _ in range(n)]


def merge(graphs):
    xs, edges, owner = [], [], []
    for k, gr in enumerate(graphs):
        xs.append(gr.x)
        edges.append(gr.edges)
        owner.append(torch.full((len(gr.x),), k))
    y = torch.tensor([gr.label for gr in graphs])
    return torch.cat(xs), torch.cat(edges, dim=1), torch.cat(owner), y


class SageLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.nbr = nn.Linear(i, o), nn.Linear(i, o, bias=False)
        self.norm = nn.LayerNorm(o)

    def forward(self, x, edges):
        src, dst = edges
        agg = torch.zeros_like(x).index_add_(0, dst, x[src])
        deg = torch.zeros(len(x)).index_add_(0, dst, torch.ones(len(dst))).clamp(min=1)
        return torch.relu(self.norm(self.own(x) + self.nbr(agg / deg[:, None])))


class GraphClassifier(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.layers = nn.ModuleList([SageLayer(4, d), SageLayer(d, d)])
        self.readout = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 2))

    def forward(self, x, edges, owner, n_graphs):
        for layer in self.layers:
            x = layer(x, edges)
        count = torch.bincount(owner, minlength=n_graphs).clamp(min=1)
        pooled = torch.zeros(n_graphs, x.shape[1]).index_add_(0, owner, x) / count[:, None]
        return self.readout(pooled)


@torch.no_grad()
def accuracy(model, graphs, bs=50):
    model.eval()
    hits = 0
    for i in range(0, len(graphs), bs):
        x, e, owner, y = merge(graphs[i:i + bs])
        hits += (model(x, e, owner, len(y)).argmax(1) == y).sum().item()
    return hits / len(graphs)


def train():
    train_set, test_set = make_set(800, 0), make_set(250, 1)
    model = GraphClassifier()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    for epoch in range(20):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(train_set)).split(32):
            x, e, owner, y = merge([train_set[i] for i in idx.tolist()])
            loss = nn.functional.cross_entropy(model(x, e, owner, len(y)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(y)
        print(f"epoch {epoch:02d} loss {total / len(train_set):.4f} test acc {accuracy(model, test_set):.3f}")
    return 1 - accuracy(model, test_set)


print("RESULT", train())
