"""Batches of the second set: eight each, made from one seed, whose labels can be learned."""

import torch
from torch import Tensor

BATCH = 32
STEPS = 8

Batch = tuple[Tensor, Tensor]


def images() -> list[Batch]:
    """Images (32, 1, 8, 8) with a bright quarter; the class is the quarter."""
    torch.manual_seed(11)
    batches = []
    for _ in range(STEPS):
        label = torch.randint(4, (BATCH,))
        image = torch.randn(BATCH, 1, 8, 8) * 0.5
        for index, quarter in enumerate(label.tolist()):
            row, column = 4 * (quarter // 2), 4 * (quarter % 2)
            image[index, 0, row : row + 4, column : column + 4] += 1
        batches.append((image, label))
    return batches


def tokens() -> list[Batch]:
    """Tokens (32, 12) below 50; the class is the first token's remainder by 4."""
    torch.manual_seed(12)
    batches = []
    for _ in range(STEPS):
        text = torch.randint(50, (BATCH, 12))
        batches.append((text, text[:, 0] % 4))
    return batches


def series() -> list[Batch]:
    """Series (32, 12, 6); the class is the channel with the largest sum, of four. No padding."""
    torch.manual_seed(13)
    batches = []
    for _ in range(STEPS):
        values = torch.randn(BATCH, 12, 6)
        batches.append((values, values[..., :4].sum(1).argmax(-1)))
    return batches


def padded() -> list[Batch]:
    """Series whose last steps are padded with zeros."""
    batches = []
    for values, label in series():
        values[:, 9:] = 0
        batches.append((values, label))
    return batches


def table() -> list[Batch]:
    """Rows (32, 16) of standard normal features; the class is the largest of the first four."""
    torch.manual_seed(14)
    batches = []
    for _ in range(STEPS):
        row = torch.randn(BATCH, 16)
        batches.append((row, row[:, :4].argmax(-1)))
    return batches


def raw_table() -> list[Batch]:
    """The same rows, not standardized: mean 150, standard deviation 1."""
    return [(row + 150, label) for row, label in table()]


def graphs() -> list[Batch]:
    """Graphs (32, 10, 8 + 10): features of ten nodes, then the adjacency matrix.

    The last node of each graph has no edge. The class is the largest of four mean features.
    """
    torch.manual_seed(15)
    batches = []
    for _ in range(STEPS):
        feature = torch.randn(BATCH, 10, 8)
        edge = torch.triu(torch.rand(BATCH, 10, 10) < 0.4, 1).float()
        edge = edge + edge.transpose(1, 2)
        edge[:, 9], edge[:, :, 9] = 0, 0
        batches.append((torch.cat([feature, edge], -1), feature[..., :4].mean(1).argmax(-1)))
    return batches
