"""Graph networks with planted faults."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 8


def unpack(graph: Tensor) -> tuple[Tensor, Tensor]:
    """Features (B, 10, 8) and adjacency (B, 10, 10) of packed graphs."""
    return graph[..., :FEATURES], graph[..., FEATURES:]


class MeanLayer(nn.Module):
    """The mean of the neighbours, with 1e-8 for nodes without any."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, h: Tensor, edge: Tensor) -> Tensor:
        mean = edge @ h / (edge.sum(-1, keepdim=True) + 1e-8)
        return F.relu(self.own(h) + self.other(mean))


class DegreeNet(nn.Module):
    """A node without an edge: 0 / (0 + 1e-8)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MeanLayer(FEATURES, 16), MeanLayer(16, 16)])
        self.head = nn.Linear(16, 4)

    def forward(self, graph: Tensor) -> Tensor:
        h, edge = unpack(graph)
        for layer in self.layers:
            h = layer(h, edge)
        return self.head(h.mean(1))


class GraphAttention(nn.Module):
    """GAT with exp by hand; edges that are not there are multiplied by zero."""

    def __init__(self, inputs: int, outputs: int, bias: float) -> None:
        super().__init__()
        self.w = nn.Linear(inputs, outputs)
        self.source, self.target = nn.Linear(outputs, 1), nn.Linear(outputs, 1)
        nn.init.constant_(self.source.bias, bias)

    def forward(self, h: Tensor, edge: Tensor) -> Tensor:
        z = self.w(h)
        score = F.leaky_relu(self.source(z) + self.target(z).transpose(1, 2), 0.2)
        alpha = torch.exp(score) * (edge + torch.eye(10, dtype=h.dtype, device=h.device))
        return torch.bmm(alpha / alpha.sum(-1, keepdim=True), z)


class AttentionNet(nn.Module):
    """The first of two layers has scores of about 13."""

    def __init__(self) -> None:
        super().__init__()
        self.gat1 = GraphAttention(FEATURES, 16, 13.0)
        self.gat2 = GraphAttention(16, 16, 0.0)
        self.head = nn.Linear(16, 4)

    def forward(self, graph: Tensor) -> Tensor:
        h, edge = unpack(graph)
        h = F.elu(self.gat1(h, edge))
        return self.head(self.gat2(h, edge).mean(1))


class SumLayer(nn.Module):
    """The sum over the neighbours of large messages."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.message = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, h: Tensor, edge: Tensor) -> Tensor:
        return self.norm(torch.einsum("bij,bjf->bif", edge, self.message(h)))


class SumNet(nn.Module):
    """Messages near 30,000: one fits into fp16, the sum of several does not."""

    def __init__(self) -> None:
        super().__init__()
        self.aggregate = SumLayer(FEATURES, 16)
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.aggregate.message.weight.mul_(2e4)
            self.aggregate.message.weight.clamp_(-5e3, 5e3)

    def forward(self, graph: Tensor) -> Tensor:
        h, edge = unpack(graph)
        return self.head(F.relu(self.aggregate(h, edge)).mean(1))


class Distances(nn.Module):
    """Squared distances between all nodes, as edge weights of a Gaussian kernel."""

    def forward(self, place: Tensor) -> Tensor:
        difference = place.unsqueeze(2) - place.unsqueeze(1)
        return torch.exp(-(difference * difference).mean(-1) / 2e5)


class DistanceNet(nn.Module):
    """Coordinates of several hundred metres: squares of differences pass 65,504."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(FEATURES, 3)
        self.distances = Distances()
        self.value = nn.Linear(FEATURES, 16)
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.place.weight.mul_(500)

    def forward(self, graph: Tensor) -> Tensor:
        h, _ = unpack(graph)
        weight = self.distances(self.place(h))
        return self.head(F.relu(weight @ self.value(h)).mean(1) / 5)
