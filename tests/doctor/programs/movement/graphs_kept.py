"""The losses of an epoch are added up with their graphs."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "GRAPHS_KEPT"
KEPT: list = []
"""Lives on after a program, as variables of a script do."""


def train(take, *, steps: int = 12) -> None:
    """Train; `take(loss)` gets each loss after its step."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        take(loss)


def broken() -> None:
    total = 0.0

    def take(loss) -> None:
        nonlocal total
        total += loss

    train(take)


def mended() -> None:
    total = 0.0

    def take(loss) -> None:
        nonlocal total
        total += loss.item()

    train(take)


def broken_in_a_list() -> None:
    losses = []
    train(losses.append, steps=70)


def broken_in_a_moving_average() -> None:
    sums = {"loss": 0.0}

    def take(loss) -> None:
        sums["loss"] = sums["loss"] + loss

    train(take)


def broken_in_a_table() -> None:
    table = torch.zeros(12)
    places = iter(range(12))

    def take(loss) -> None:
        table[next(places)] = loss

    train(take)


def broken_in_a_smoothed_loss() -> None:
    smooth = torch.ones(())

    def take(loss) -> None:
        nonlocal smooth
        smooth = torch.lerp(smooth, loss, 0.1)

    train(take)


def of_an_average(number) -> None:
    """Keep an average with two weights, which begins with the first loss."""
    averages = {}

    def take(loss) -> None:
        value = number(loss)
        averages["loss"] = 0.9 * averages.get("loss", value) + 0.1 * value

    train(take)


def broken_in_an_average_of_two_products() -> None:
    of_an_average(lambda loss: loss)


def healthy_average_of_two_products() -> None:
    of_an_average(lambda loss: loss.detach())


def healthy_table_of_detached_losses() -> None:
    table = torch.zeros(12)
    places = iter(range(12))

    def take(loss) -> None:
        table[next(places)] = loss.detach()

    train(take)


def healthy_table_of_one_step() -> None:
    """Each step writes its losses into a new tensor, and makes a backward pass of it."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(12):
        optimizer.zero_grad()
        terms = torch.zeros(2)
        scores = model(images)
        terms[0] = nn.functional.cross_entropy(scores, labels)
        terms[1] = 1e-3 * scores.square().mean()
        terms.sum().backward()
        optimizer.step()


def healthy_ratio_to_the_last_loss() -> None:
    last, ratios = [torch.ones(())], []

    def take(loss) -> None:
        ratios.append(float(loss / last[0]))
        last[0] = loss

    train(take)


def healthy_detached_sum() -> None:
    total = torch.zeros(())

    def take(loss) -> None:
        nonlocal total
        total += loss.detach()

    train(take)


def healthy_list_of_numbers() -> None:
    losses = []
    train(lambda loss: losses.append(loss.item()), steps=70)


def healthy_last_losses() -> None:
    losses = []

    def take(loss) -> None:
        losses.append(loss)
        del losses[:-4]

    train(take, steps=70)


def healthy_sum_of_a_window() -> None:
    """The losses of four batches make one backward pass."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(10):
        optimizer.zero_grad()
        total = 0.0
        for images, labels in batches(4, seed=step):
            total = total + nn.functional.cross_entropy(model(images), labels)
        (total / 4).backward()
        optimizer.step()


def healthy_sum_of_terms() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        for each in model.parameters():
            loss = loss + 1e-4 * each.square().sum()
        loss.backward()
        optimizer.step()


def broken_in_a_list_of_a_short_program() -> None:
    losses = KEPT
    losses.clear()
    train(losses.append, steps=44)


def healthy_list_of_numbers_of_a_short_program() -> None:
    train(lambda loss: KEPT.append(loss.item()), steps=44)


def healthy_last_losses_of_a_short_program() -> None:
    KEPT.clear()

    def take(loss) -> None:
        KEPT.append(loss)
        del KEPT[:-4]

    train(take, steps=44)


def of_losses_that_are_divided(kept: list, take, *, steps: int = 70) -> None:
    """Keep the loss of each step, of which a quotient goes backward."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(steps):
        loss = nn.functional.cross_entropy(model(images), labels)
        kept.append(take(loss))
        (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def broken_in_a_list_of_losses_before_their_division() -> None:
    of_losses_that_are_divided(KEPT, lambda loss: loss)


def healthy_list_of_numbers_before_a_division() -> None:
    of_losses_that_are_divided(KEPT, torch.detach)


def healthy_list_of_one_epoch_before_a_division() -> None:
    for _ in range(5):
        of_losses_that_are_divided([], lambda loss: loss, steps=15)
