"""A graph network normalises attention over the edges out of a node, and sums those into it."""

import torch
from torch import nn
from torch.nn import functional

CODE = "SOFTMAX_OVER_WRONG_EDGES"
NODES, EDGES, CLASSES = 40, 160, 3


def softmax(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the softmax of scores over the edges with the same index."""
    exps = (scores - scores.max()).exp()
    return exps / torch.zeros(NODES, exps.shape[1]).index_add(0, index, exps)[index]


def by_scatter(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    exps, rows = scores.exp(), index[:, None].expand_as(scores)
    total = torch.zeros(NODES, exps.shape[1]).scatter_add_(0, rows, exps)
    return exps / (total.gather(0, rows) + 1e-16)


def plain(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return scores.sigmoid()


class Attention(nn.Module):
    """Sums the values of sources with weights.

    Args:
        weigh: Returns weights from scores and an index.
        end: Over the edges of which of their ends the weights are normalised.
    """

    def __init__(self, weigh, end: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.values, self.scores = nn.Linear(8, 16), nn.Linear(16, 2)
        self.head, self.weigh, self.end = nn.Linear(16, CLASSES), weigh, end

    def forward(self, inputs: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = self.values(inputs)
        sources, targets = edges
        scores = self.scores(torch.tanh(hidden[sources] + hidden[targets]))
        weights = self.weigh(scores, edges[self.end])
        messages = (hidden[sources].view(EDGES, 2, 8) * weights[..., None]).flatten(1)
        return self.head(torch.zeros(NODES, 16).index_add(0, targets, messages))


def train(model: nn.Module, *, both_ways: bool = False, loops: int = 0) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NODES, 8, generator=generator)
    labels = inputs[:, :CLASSES].argmax(1)
    sources = torch.randint(NODES, (EDGES,), generator=generator)
    targets = (torch.rand(EDGES, generator=generator).square() * NODES).long()
    if both_ways:
        half = sources[: EDGES // 2], targets[: EDGES // 2]
        sources, targets = torch.cat(half), torch.cat(half[::-1])
    targets[:loops] = sources[:loops] = torch.arange(loops) % NODES
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        loss = functional.cross_entropy(model(inputs, torch.stack([sources, targets])), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(Attention(softmax, 0))


def mended() -> None:
    train(Attention(softmax, 1))


def broken_by_scatter() -> None:
    train(Attention(by_scatter, 0), both_ways=True)


def healthy_by_scatter() -> None:
    train(Attention(by_scatter, 1), both_ways=True)


def healthy_gates() -> None:
    train(Attention(plain, 0))


class Spread(Attention):
    """Each node spreads what it has over the edges out of it, without learned weights."""

    def forward(self, inputs: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden, (sources, targets) = self.values(inputs), edges
        count = torch.bincount(sources, minlength=NODES).clamp(min=1)
        share = hidden[sources] / count[sources][:, None]
        return self.head(torch.zeros(NODES, 16).index_add(0, targets, share))


def healthy_shares() -> None:
    train(Spread(plain, 0))


class Mean(Attention):
    """Each node takes the mean of what comes into it, and weighs it by what goes out."""

    def forward(self, inputs: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden, (sources, targets) = self.values(inputs), edges
        weights = softmax(self.scores(hidden)[targets], targets)[:, :1]
        return self.head(torch.zeros(NODES, 16).index_add(0, targets, hidden[sources] * weights))


def healthy_weights_of_targets() -> None:
    train(Mean(plain, 0))


class Relations(Attention):
    """Normalises over the edges of each of two relations into a node."""

    def forward(self, inputs: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden, (sources, targets) = self.values(inputs), edges
        groups = 2 * targets + torch.arange(EDGES) % 2
        exps = self.scores(hidden)[sources].exp()
        weights = exps / torch.zeros(2 * NODES, 2).index_add(0, groups, exps)[groups]
        messages = (hidden[sources].view(EDGES, 2, 8) * weights[..., None]).flatten(1)
        return self.head(torch.zeros(NODES, 16).index_add(0, targets, messages))


def healthy_relations() -> None:
    train(Relations(plain, 0))


def healthy_nodes_that_mostly_see_themselves() -> None:
    train(Attention(softmax, 0), loops=EDGES - 8)
