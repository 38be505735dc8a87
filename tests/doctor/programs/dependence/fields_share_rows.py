"""A factorization machine reads one table for all fields, without the fields' offsets."""

import torch
from torch import nn
from torch.nn import functional

CODE = "FIELDS_SHARE_ROWS"
SIZES = (20, 12, 8)


class Machine(nn.Module):
    """Products of the vectors of each two fields.

    Args:
        rows: Number of rows of the table.
        offsets: What is added to the numbers of each field.
    """

    def __init__(self, rows: int, offsets=(0, 0, 0)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.offsets = nn.Embedding(rows, 4), torch.tensor(offsets)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        vectors = self.table(numbers + self.offsets)
        return (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)


def train(model: nn.Module, sizes=SIZES) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        columns = [torch.randint(size, (128,), generator=generator) for size in sizes]
        clicks = ((columns[0] + columns[1]) % 2).float()
        loss = functional.binary_cross_entropy_with_logits(model(torch.stack(columns, 1)), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(Machine(sum(SIZES)))


def mended() -> None:
    train(Machine(sum(SIZES), (0, 20, 32)))


def healthy_words() -> None:
    """The positions of a text share all words."""
    train(Machine(40), (40, 40, 40))


def healthy_pairs_of_one_kind() -> None:
    train(Machine(30), (30, 29, 30))


def healthy_room_for_new_words() -> None:
    train(Machine(96), (31, 32, 31))


def healthy_words_of_three_positions() -> None:
    train(Machine(40), (30, 24, 30))


def atoms(sizes, rows: int, offsets=(0, 0, 0), draw=None) -> None:
    """Each molecule has atoms, and each atom has fields, whose vectors are added."""
    model = Machine(rows, offsets)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        columns = [torch.randint(size, (32, 9), generator=generator) for size in sizes]
        numbers = torch.stack(columns, 2) if draw is None else draw(torch.stack(columns, 2))
        vectors = model.table(numbers + model.offsets).sum(2).square().mean(1)
        labels = numbers[:, 0].sum(1).float()
        loss = functional.mse_loss(vectors.sum(1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def broken_with_as_many_rows_as_the_largest_field() -> None:
    atoms((9, 5, 4), rows=9)


def healthy_rows_of_their_own() -> None:
    atoms((9, 5, 4), rows=18, offsets=(0, 9, 14))


def healthy_words_that_are_added() -> None:
    atoms((9, 9, 9), rows=9)


def healthy_sorted_words() -> None:
    """The words of each bag are sorted, so small ones come first."""
    atoms((9, 9, 9), rows=9, draw=lambda numbers: numbers.sort(2).values)


def healthy_bags_that_are_padded() -> None:
    """Few bags have a third word: its number is 0 in the others."""

    def draw(numbers):
        numbers[1:, :, 2] = 0
        return numbers

    atoms((9, 9, 9), rows=9, draw=draw)
