"""Messages along the edges of a graph are added to their targets, and replace each other."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "TERMS_LOST_BY_INDEX"
SOURCES = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 0, 2])
TARGETS = torch.tensor([1, 1, 2, 2, 3, 3, 4, 5, 6, 7])
UNLIKE = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])


class Passing(nn.Module):
    """Adds up messages between the samples of a batch.

    Args:
        collect: Adds the messages, shape (10, 16), to nodes, shape (8, 16).
        sources: The node from which each message comes.
    """

    def __init__(self, collect, sources: torch.Tensor = SOURCES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift, self.head = nn.Linear(6, 16), nn.Linear(32, 3)
        self.collect, self.sources = collect, sources

    def forward(self, images):
        nodes = self.lift(images)
        got = self.collect(torch.zeros_like(nodes), nodes[self.sources].tanh())
        return self.head(torch.cat([nodes, got], dim=1))


def train(collect, sources: torch.Tensor = SOURCES) -> None:
    model = Passing(collect, sources)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def adding(nodes, messages, index=TARGETS):
    nodes[index] += messages
    return nodes


def broken() -> None:
    train(adding)


def mended() -> None:
    train(lambda nodes, messages: nodes.index_add(0, TARGETS, messages))


def broken_by_a_put() -> None:
    train(lambda nodes, new: nodes.index_put((TARGETS,), new + nodes[TARGETS]))


def broken_by_a_scatter() -> None:
    def collect(nodes, messages):
        index = TARGETS[:, None].expand_as(messages)
        return nodes.scatter(0, index, nodes.gather(0, index) + messages)

    train(collect)


def broken_by_a_copy_of_differences() -> None:
    train(lambda nodes, new: nodes.index_copy(0, TARGETS, nodes.index_select(0, TARGETS) - new))


def broken_in_columns() -> None:
    def collect(nodes, messages):
        columns = torch.arange(10) % 4
        nodes[:, columns] += messages.T[:8]
        return nodes

    train(collect)


def broken_by_a_scatter_of_values() -> None:
    """Nothing is added, and the backward gives the gradient of a place to all of its values."""

    def collect(nodes, messages):
        return nodes.scatter(0, TARGETS[:, None].expand_as(messages), messages)

    train(collect)


def healthy_scatter_that_adds() -> None:
    def collect(nodes, messages):
        return nodes.scatter_add(0, TARGETS[:, None].expand_as(messages), messages)

    train(collect)


def healthy_scatter_of_values_to_one_place_each() -> None:
    def collect(nodes, messages):
        return nodes.scatter(0, UNLIKE[:, None].expand_as(nodes), messages[:8])

    train(collect)


def healthy_scatter_of_marks() -> None:
    def collect(nodes, messages):
        marks = torch.arange(10.0)[:, None].expand_as(messages)
        return nodes.scatter(0, TARGETS[:, None].expand_as(messages), marks)

    train(collect)


def healthy_scatter_of_equal_values() -> None:
    def collect(nodes, messages):
        first = messages.mean(0).expand_as(messages)
        return nodes.scatter(0, TARGETS[:, None].expand_as(messages), first)

    train(collect)


def healthy_sum_that_accumulates() -> None:
    train(lambda nodes, new: nodes.index_put((TARGETS,), new, accumulate=True))


def healthy_index_without_repeats() -> None:
    train(lambda nodes, new: adding(nodes, new, UNLIKE), SOURCES[:8])


def healthy_last_write() -> None:
    """The last message replaces the others, as in a cache."""

    def collect(nodes, messages):
        nodes[TARGETS] = messages
        return nodes

    train(collect)


def healthy_marks() -> None:
    def collect(nodes, messages):
        del messages
        nodes[TARGETS] += 1.0
        return nodes

    train(collect)


def healthy_average_of_old_and_new() -> None:
    """A running average, of which each write is one."""

    def collect(nodes, messages):
        nodes[TARGETS] += 0.1 * (messages - nodes[TARGETS])
        return nodes

    train(collect)


def healthy_slot_for_padding() -> None:
    """Whatever goes to the last slot is dropped."""

    def collect(nodes, messages):
        room = torch.cat([nodes, nodes[:1]])
        room[torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 8])] += messages
        return room[:-1]

    train(collect)


def healthy_repeats_of_nothing() -> None:
    """The index repeats only where a mask makes the terms 0."""

    def collect(nodes, messages):
        mask = torch.tensor([0.0, 1, 0, 1, 0, 1, 1, 1, 1, 1])[:, None]
        order = torch.argsort(mask.squeeze(1), stable=True)
        nodes[TARGETS[order]] += (messages * mask)[order]
        return nodes

    train(collect)


def healthy_mask() -> None:
    def collect(nodes, messages):
        nodes[nodes[:, 0] == 0] += messages[:8]
        return nodes

    train(collect)


def in_the_loop(collect) -> None:
    """The loop itself collects the messages of a batch in a tensor that it has filled with 0."""
    torch.manual_seed(0)
    lift, head = nn.Linear(6, 16), nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*lift.parameters(), *head.parameters()], lr=0.05)
    for images, labels in batches(6):
        messages = lift(images[SOURCES]).tanh()
        optimizer.zero_grad()
        loss = functional.cross_entropy(head(collect(torch.zeros(8, 16), messages)), labels)
        loss.backward()
        optimizer.step()


def broken_in_the_loop() -> None:
    in_the_loop(adding)


def broken_by_a_sum_in_the_loop() -> None:
    def collect(nodes, messages):
        nodes[TARGETS] = nodes[TARGETS] + messages
        return nodes

    in_the_loop(collect)


def broken_by_a_scatter_in_the_loop() -> None:
    in_the_loop(lambda nodes, new: nodes.scatter_(0, TARGETS[:, None].expand_as(new), new))


def healthy_sum_in_the_loop() -> None:
    in_the_loop(lambda nodes, new: nodes.index_add_(0, TARGETS, new))


def healthy_average_in_the_loop() -> None:
    def collect(nodes, messages):
        nodes[TARGETS] += 0.1 * (messages - nodes[TARGETS])
        return nodes

    in_the_loop(collect)


def healthy_last_write_in_the_loop() -> None:
    def collect(nodes, messages):
        nodes[TARGETS] = 0.5 * messages
        return nodes

    in_the_loop(collect)


def healthy_rows_in_the_loop() -> None:
    def collect(nodes, messages):
        for at in range(8):
            nodes[at] = messages[at] + 0.1 * messages[at - 1]
        return nodes

    in_the_loop(collect)
