"""The first label of an alphabet has the number of the blank."""

import torch
from torch import nn
from torch.nn import functional

CODE = "CTC_TARGET_CONTAINS_BLANK"
STEPS, CLASSES = 12, 5


def train(loss, labels, *, count: int = 8, lengths=(3, 4), joined: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(count):
        targets = labels()
        if joined:
            rows = zip(targets, lengths, strict=True)
            targets = torch.cat([row[:length] for row, length in rows])
        chances = model(torch.randn(STEPS, 2, 6)).log_softmax(-1)
        optimizer.zero_grad()
        loss(chances, targets, torch.full((2,), STEPS), torch.tensor(lengths)).backward()
        optimizer.step()


def from_zero() -> torch.Tensor:
    return torch.arange(8).view(2, 4) % 4


def from_one() -> torch.Tensor:
    return torch.arange(8).view(2, 4) % 4 + 1


def padded(blank: int) -> torch.Tensor:
    targets = from_one()
    targets[0, 3] = blank
    return targets


def broken() -> None:
    criterion = nn.CTCLoss()
    train(criterion, from_zero)


def mended() -> None:
    criterion = nn.CTCLoss(blank=4)
    train(criterion, from_zero)


def broken_in_joined_targets() -> None:
    train(lambda *given: functional.ctc_loss(*given, blank=1), from_one, joined=True)


def broken_inside_a_module() -> None:
    class Criterion(nn.Module):
        def forward(self, chances, targets, inputs, lengths):
            return functional.ctc_loss(chances, targets, inputs, lengths, blank=2)

    train(Criterion(), from_zero)


def broken_by_lengths_with_padding() -> None:
    criterion = nn.CTCLoss()
    train(criterion, lambda: padded(0), lengths=(4, 4))


def healthy_labels_from_one() -> None:
    train(nn.CTCLoss(), from_one)


def healthy_padding_with_the_blank() -> None:
    train(nn.CTCLoss(), lambda: padded(0))


def healthy_joined_targets() -> None:
    train(functional.ctc_loss, from_one, joined=True)


def healthy_last_class_as_blank() -> None:
    train(nn.CTCLoss(blank=CLASSES - 1, zero_infinity=True), from_zero)


def healthy_scores_without_training() -> None:
    """Only the negative log-likelihood of one label is asked for, without gradients."""

    def score(chances, *given):
        with torch.no_grad():
            functional.ctc_loss(chances, from_zero(), *given[1:])
        return functional.ctc_loss(chances, *given)

    train(score, from_one)
