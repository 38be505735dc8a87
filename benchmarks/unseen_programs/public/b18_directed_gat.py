"""Trains a graph attention network to classify nodes of a directed interaction graph."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(47)

NODES, CLASSES, FEATS = 900, 5, 16


def softmax(src, index, num_nodes):
    """Softmax of edge scores within the groups given by index."""
    top = torch.full((num_nodes, src.shape[1]), -1e9).scatter_reduce(
        0, index[:, None].expand_as(src), src, reduce="amax")
    out = (src - top[index]).exp()
    norm = torch.zeros(num_nodes, src.shape[1]).index_add(0, index, out)
    return out / (norm[index] + 1e-16)


class GATConv(nn.Module):
    def __init__(self, dim_in, dim_out, edge_types, heads=2, negative_slope=0.2):
        super().__init__()
        self.heads, self.dim, self.slope = heads, dim_out, negative_slope
        self.weight_linear = nn.Linear(dim_in, heads * dim_out)
        self.att = nn.Parameter(torch.empty(1, heads, 2 * dim_out))
        self.bias = nn.Parameter(torch.zeros(dim_out))
        self.edge_embedding = nn.Embedding(edge_types, heads * dim_out)
        nn.init.xavier_uniform_(self.att)
        nn.init.xavier_uniform_(self.edge_embedding.weight)

    def forward(self, x, edge_index, edge_attr):
        n = x.shape[0]
        h = self.weight_linear(x).view(n, self.heads, self.dim)
        edge = self.edge_embedding(edge_attr).view(-1, self.heads, self.dim)
        x_i, x_j = h[edge_index[1]], h[edge_index[0]] + edge
        alpha = F.leaky_relu((torch.cat([x_i, x_j], -1) * self.att).sum(-1), self.slope)
        alpha = softmax(alpha, edge_index[0], n)
        message = x_j * alpha[..., None]
        out = torch.zeros(n, self.heads, self.dim).index_add(0, edge_index[1], message)
        return out.mean(1) + self.bias


class GNN(nn.Module):
    def __init__(self, width=32, layers=2, edge_types=3, drop=0.2):
        super().__init__()
        self.embed = nn.Linear(FEATS, width)
        self.convs = nn.ModuleList(GATConv(width, width, edge_types) for _ in range(layers))
        self.drop, self.head = drop, nn.Linear(width, CLASSES)

    def forward(self, x, edge_index, edge_attr):
        h = self.embed(x)
        for i, conv in enumerate(self.convs):
            h = conv(h, edge_index, edge_attr)
            if i < len(self.convs) - 1:
                h = F.relu(h)
            h = F.dropout(h, self.drop, self.training)
        return self.head(h)


def interaction_graph():
    """Few accounts follow many; messages flow from the followed account to the follower."""
    y = torch.randint(0, CLASSES, (NODES,))
    x = torch.randn(CLASSES, FEATS)[y] * 0.35 + torch.randn(NODES, FEATS)
    popularity = torch.distributions.Pareto(0.2, 0.9).sample((NODES,)).clamp(max=400)
    activity = torch.distributions.Pareto(3.0, 1.2).sample((NODES,)).clamp(max=80).long()
    src, dst = [], []
    for v in range(NODES):
        same = popularity * torch.where(y == y[v], 1.0, 0.12)
        pick = torch.multinomial(same, int(activity[v]), replacement=True)
        src.append(pick)
        dst.append(torch.full_like(pick, v))
    loops = torch.arange(NODES)
    edge_index = torch.stack([torch.cat(src + [loops]), torch.cat(dst + [loops])])
    edge_attr = torch.randint(0, 2, (edge_index.shape[1],))
    edge_attr[-NODES:] = 2
    order = torch.randperm(NODES)
    return x, y, edge_index, edge_attr, order[:300], order[300:]


x, y, edge_index, edge_attr, train_idx, val_idx = interaction_graph()
model = GNN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
curve = []
for epoch in range(1, 81):
    model.train()
    loss = F.cross_entropy(model(x, edge_index, edge_attr)[train_idx], y[train_idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 0:
        model.eval()
        with torch.no_grad():
            logits = model(x, edge_index, edge_attr)[val_idx]
        val_loss = F.cross_entropy(logits, y[val_idx]).item()
        curve.append(val_loss)
        print(f"epoch {epoch:3d} train {loss.item():.4f} val {val_loss:.4f} "
              f"acc {(logits.argmax(1) == y[val_idx]).float().mean():.3f}")
print("RESULT", round(curve[-1], 5))
