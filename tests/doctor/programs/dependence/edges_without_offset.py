"""The edges of the graphs of a batch are joined as they are, without the number of nodes before."""

import torch
from torch import nn
from torch.nn import functional

CODE = "EDGES_WITHOUT_OFFSET"
GRAPHS = 6


def graphs(count: int = 6):
    """Yield batches of graphs, each with features of nodes, edges and a label."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        batch = []
        for number in range(GRAPHS):
            nodes = 4 + number % 3
            edges = torch.randint(0, nodes, (2, 9), generator=generator)
            batch.append((torch.randn(nodes, 5, generator=generator), edges, number % 2))
        yield batch


def joined(batch, *, moves: bool):
    """Return the nodes, edges, graphs of nodes, and labels of a batch."""
    starts = torch.tensor([0, *(len(nodes) for nodes, _, _ in batch)]).cumsum(0)
    edges = [each + starts[at] * moves for at, (_, each, _) in enumerate(batch)]
    owners = [torch.full((len(nodes),), at) for at, (nodes, _, _) in enumerate(batch)]
    labels = torch.tensor([label for _, _, label in batch])
    nodes = torch.cat([nodes for nodes, _, _ in batch])
    return nodes, torch.cat(edges, 1), torch.cat(owners), labels


def added(nodes, edges):
    source, target = edges
    return torch.zeros_like(nodes).index_add(0, target, nodes[source])


def scattered(nodes, edges):
    source, target = edges
    values = nodes.index_select(0, source)
    return torch.zeros_like(nodes).scatter_add(0, target[:, None].expand_as(values), values)


class Network(nn.Module):
    """Passes messages along edges once, and sums the nodes of each graph."""

    def __init__(self, send=added) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own, self.other, self.head = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 2)
        self.kinds, self.send = nn.Parameter(torch.randn(7, 5)), send

    def forward(self, nodes, edges, owners):
        nodes = nodes + self.kinds[nodes.argmax(1)]
        nodes = torch.relu(self.own(nodes) + self.other(self.send(nodes, edges)))
        return self.head(nodes.new_zeros(GRAPHS, 8).index_add(0, owners, nodes))


def train(*, moves: bool, send=added) -> None:
    model = Network(send)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in graphs():
        nodes, edges, owners, labels = joined(batch, moves=moves)
        optimizer.zero_grad()
        functional.cross_entropy(model(nodes, edges, owners), labels).backward()
        optimizer.step()


def broken() -> None:
    train(moves=False)


def mended() -> None:
    train(moves=True)


def broken_with_other_functions() -> None:
    train(moves=False, send=scattered)


def healthy_other_functions() -> None:
    train(moves=True, send=scattered)


def healthy_without_messages() -> None:
    """Nodes are only summed."""
    train(moves=False, send=lambda nodes, _: nodes)


def healthy_places_in_the_graph() -> None:
    """Each node gets a row of a table by its place in its graph."""
    table = torch.randn(8, 5)

    def send(nodes, _):
        sizes = [4 + number % 3 for number in range(GRAPHS)]
        return nodes + table[torch.cat([torch.arange(each) for each in sizes])]

    train(moves=False, send=send)


def healthy_sums_of_the_first_nodes() -> None:
    """A few nodes are read by an index, and nothing is sent between nodes."""
    train(moves=False, send=lambda nodes, _: nodes + nodes[torch.tensor([0, 1, 2, 1])].mean(0))
