"""A table of positions for sequences of shape (positions, samples) is added to other ones."""

import torch
from torch import nn
from torch.nn import functional

CODE = "POSITIONS_OVER_SAMPLES"
SAMPLES, LENGTH, WIDTH, TOKENS = 6, 5, 8, 11


class Reader(nn.Module):
    """Embeds tokens, adds positions, mixes the positions, and predicts a class.

    Args:
        add: Adds positions to embedded tokens, with a table of shape (32, 8).
        transposed: Whether the model turns its input to (positions, samples, features).
    """

    def __init__(self, add, *, transposed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.add, self.transposed = nn.Embedding(TOKENS, WIDTH), add, transposed
        self.table = nn.Embedding(32, WIDTH)
        self.mix = nn.MultiheadAttention(WIDTH, 2, batch_first=not transposed)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        given = self.embedding(tokens)
        given = given.transpose(0, 1) if self.transposed else given
        given = self.add(given, self.table)
        mixed = torch.relu(given + self.mix(given, given, given)[0])
        return self.head(mixed.mean(0 if self.transposed else 1))


def train(model: nn.Module, *, samples: int = SAMPLES, length: int = LENGTH) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        tokens = torch.randint(0, TOKENS, (samples, length), generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens), tokens[:, 0] % 3).backward()
        optimizer.step()


def broken() -> None:
    train(Reader(lambda given, table: given + table.weight[: given.size(0)].unsqueeze(1)))


def mended() -> None:
    train(Reader(lambda given, table: given + table.weight[: given.size(1)]))


def broken_counted_over_the_samples() -> None:
    train(Reader(lambda given, table: given + table(torch.arange(len(given)))[:, None]))


def broken_after_a_transpose() -> None:
    def add(given, table):
        return given + table.weight.unsqueeze(0)[:, : given.size(1)]

    train(Reader(add, transposed=True))


def broken_waves() -> None:
    def add(given, table):
        angles = torch.arange(len(given)).float()[:, None] / 10 ** torch.linspace(0, 2, WIDTH)
        return given + angles.sin()[:, None]

    train(Reader(add))


def broken_with_as_many_features_as_samples() -> None:
    model = Reader(lambda given, table: given + table.weight[: given.size(0)].unsqueeze(1))
    train(model, samples=WIDTH)


def healthy_as_many_features_as_samples() -> None:
    train(Reader(lambda given, table: given + table.weight[: given.size(1)]), samples=WIDTH)


def healthy_as_many_features_as_samples_and_positions() -> None:
    def add(given, table):
        return given + table.weight[: given.size(1)] * torch.arange(1, WIDTH + 1) / WIDTH

    train(Reader(add), samples=WIDTH, length=WIDTH)


def healthy_positions_first() -> None:
    def add(given, table):
        return given + table.weight[: given.size(0)].unsqueeze(1)

    train(Reader(add, transposed=True))


def healthy_counted_over_the_positions() -> None:
    train(Reader(lambda given, table: given + table(torch.arange(given.size(1)))))


def healthy_noise_of_each_sample() -> None:
    train(Reader(lambda given, table: given + 0.1 * torch.randn(len(given), 1, WIDTH)))


class Codes(nn.Module):
    """Adds a code that belongs to the sample, by its number in the data set."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader(lambda given, table: given)
        self.codes = nn.Embedding(64, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        numbers = tokens.sum(1)
        self.reader.add = lambda given, table: given + self.codes(numbers)[:, None]
        return self.reader(tokens)


def healthy_codes_of_samples() -> None:
    train(Codes())


def healthy_as_many_heads_as_samples() -> None:
    """A bias of each head is added to scores of shape (samples, heads, positions, positions)."""
    bias = torch.randn(32)

    def add(given, table):
        heads = given.new_zeros(SAMPLES, SAMPLES, LENGTH, WIDTH) + given[:, None]
        return (heads + bias[:SAMPLES, None, None]).mean(1)

    train(Reader(add))
