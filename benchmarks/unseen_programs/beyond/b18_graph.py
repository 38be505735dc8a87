"""Predicts the load of each node of random directed graphs by message passing."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(47)

NODES, EDGES = 40, 160


def graph(gen):
    """A node's load is the flow that its incoming edges carry, beside some noise."""
    supply = torch.rand(NODES, 1, generator=gen)
    kind = torch.randint(0, 3, (NODES,), generator=gen)
    source = torch.randint(0, NODES, (EDGES,), generator=gen)
    target = torch.randint(0, NODES, (EDGES,), generator=gen)
    strength = torch.rand(EDGES, 1, generator=gen)
    factor = torch.tensor([0.5, 1.0, 2.0])[kind].unsqueeze(1)
    flow = (supply * factor)[source] * strength
    load = torch.zeros(NODES, 1).index_add(0, target, flow)
    load = load + 0.05 * torch.randn(NODES, 1, generator=gen)
    features = torch.cat([supply, F.one_hot(kind, 3).float()], dim=1)
    return features, torch.stack([source, target]), strength, load


def collate(graphs):
    """Joins graphs to one large graph whose parts are not connected."""
    features, edges, strength, load = zip(*graphs)
    edges = [e + NODES * i for i, e in enumerate(edges)]
    return torch.cat(features), torch.cat(edges, dim=1), torch.cat(strength), torch.cat(load)


class MessageLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(inputs + 1, outputs), nn.ReLU(),
                                     nn.Linear(outputs, outputs))
        self.update = nn.Linear(inputs + outputs, outputs)

    def forward(self, h, edges, strength):
        source, target = edges
        message = self.message(torch.cat([h[source], strength], dim=1))
        received = h.new_zeros(len(h), message.shape[1])
        received[target] += message
        return F.relu(self.update(torch.cat([h, received], dim=1)))


class LoadModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList([MessageLayer(4, width), MessageLayer(width, width)])
        self.head = nn.Linear(width, 1)

    def forward(self, h, edges, strength):
        for layer in self.layers:
            h = layer(h, edges, strength)
        return self.head(h)


gen = torch.Generator().manual_seed(1)
train = [graph(gen) for _ in range(160)]
val = collate([graph(gen) for _ in range(60)])
model = LoadModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(15):
    for chunk in torch.randperm(len(train)).split(10):
        features, edges, strength, load = collate([train[i] for i in chunk.tolist()])
        loss = F.mse_loss(model(features, edges, strength), load)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = F.mse_loss(model(*val[:3]), val[3]).item()
    if epoch % 3 == 2:
        print(f"epoch {epoch} loss {loss.item():.4f} val {error:.4f}")
print("RESULT", round(error, 5))
