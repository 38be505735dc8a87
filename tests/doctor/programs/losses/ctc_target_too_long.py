"""One target has more labels than its input has time steps."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import half_autocast

CODE = "CTC_TARGET_TOO_LONG"
STEPS = 8


def train(longest: int, *, zero_infinity: bool = False, masks: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    targets = torch.arange(longest).expand(2, -1) % 4 + 1
    for _ in range(4):
        optimizer.zero_grad()
        with half_autocast():
            chances = model(torch.randn(STEPS, 2, 6)).log_softmax(-1)
            if masks:
                chances = chances.masked_fill(torch.arange(5) == 4, -torch.inf)
            loss = functional.ctc_loss(
                chances,
                targets,
                input_lengths=torch.tensor([STEPS, STEPS]),
                target_lengths=torch.tensor([4, longest]),
                zero_infinity=zero_infinity,
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(longest=10)


def mended() -> None:
    train(longest=7)


def healthy_that_leaves_such_samples_out() -> None:
    train(longest=10, zero_infinity=True)


def label_that_is_masked() -> None:
    """The target fits, but the probability of one of its labels is 0."""
    train(longest=7, masks=True)


def leave_out(longest: int, steps: int, *, every: int = 1) -> None:
    """Train joined targets, of which one of `every` pairs has a long one, with zero_infinity."""
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CTCLoss(zero_infinity=True)
    for number in range(16):
        lengths = [4, longest if number % every == 0 else 4]
        targets = torch.cat([torch.arange(each) % 4 + 1 for each in lengths])
        optimizer.zero_grad()
        chances = model(torch.randn(steps, 2, 6)).log_softmax(-1)
        criterion(chances, targets, (steps, steps), tuple(lengths)).backward()
        optimizer.step()


def broken_by_leaving_half_of_the_samples_out() -> None:
    leave_out(10, STEPS)


def broken_by_leaving_all_samples_out() -> None:
    """All gradients are 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        chances = model(torch.randn(3, 2, 6)).log_softmax(-1)
        lengths, targets = torch.tensor([3, 3]), torch.randint(1, 5, (2, 5))
        nn.CTCLoss(zero_infinity=True)(chances, targets, lengths, lengths + 2).backward()
        optimizer.step()


def healthy_that_leaves_a_few_samples_out() -> None:
    leave_out(10, STEPS, every=8)


def healthy_with_enough_time_steps() -> None:
    leave_out(10, 10)
