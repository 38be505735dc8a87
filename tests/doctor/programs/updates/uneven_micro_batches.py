"""Each micro-batch has its own mean over targets, and all micro-batches count the same."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "UNEVEN_MICRO_BATCHES"
IGNORED = -100
COUNTS = (8, 3, 2, 8)  # targets of the micro-batches of a step


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def padded(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Return labels of which only some are targets."""
    return torch.where(torch.arange(len(labels)) < count, labels, IGNORED)


def train(loss_of, counts=COUNTS, *, steps: int = 5) -> None:
    """Train; `loss_of(outputs, targets, total)` gets the number of targets of the step."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = batches(steps * len(counts))
    for _ in range(steps):
        for count in counts:
            images, labels = next(data)
            loss_of(model(images), padded(labels, count), sum(counts)).backward()
        optimizer.step()
        optimizer.zero_grad()


def broken() -> None:
    train(lambda outputs, targets, _: functional.cross_entropy(outputs, targets) / 4)


def mended() -> None:
    def loss_of(outputs, targets, total):
        return functional.cross_entropy(outputs, targets, reduction="sum") / total

    train(loss_of)


def broken_with_a_loss_module() -> None:
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORED)
    train(lambda outputs, targets, _: criterion(outputs, targets) / 4)


def broken_without_a_division() -> None:
    def loss_of(outputs, targets, _):
        return functional.nll_loss(outputs.log_softmax(-1), targets)

    train(loss_of)


def broken_by_padding_of_moderate_lengths() -> None:
    mean = functional.cross_entropy
    train(lambda outputs, targets, _: mean(outputs, targets) / 4, (8, 6, 5, 8))


def healthy_weights_of_the_micro_batches() -> None:
    def loss_of(outputs, targets, total):
        share = (targets != IGNORED).sum() / total
        return functional.cross_entropy(outputs, targets) * share

    train(loss_of)


def healthy_micro_batches_of_nearly_one_size() -> None:
    mean = functional.cross_entropy
    train(lambda outputs, targets, _: mean(outputs, targets) / 4, (8, 7, 6, 8))


def healthy_steps_of_one_batch_each() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(12)):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), padded(labels, COUNTS[number % 4])).backward()
        optimizer.step()


def train_on_groups(shift: float, *, weighted: bool = False) -> None:
    """Train a regression whose small groups of rows have other targets, by a shift."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(24):
        optimizer.zero_grad()
        for count in COUNTS:
            rows = torch.randn(8 * count, 6)
            targets = rows[:, :1] + torch.randn(len(rows), 1) + shift * (count < max(COUNTS))
            loss = functional.mse_loss(model(rows), targets)
            (loss * count / sum(COUNTS) if weighted else loss / len(COUNTS)).backward()
        optimizer.step()


def broken_in_a_regression() -> None:
    train_on_groups(4.0)


def healthy_groups_of_rows_alike() -> None:
    train_on_groups(0.0)


def healthy_weights_of_groups() -> None:
    train_on_groups(4.0, weighted=True)
