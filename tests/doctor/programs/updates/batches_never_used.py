"""An epoch of 10 batches, and steps for 4 of them each: the last 2 are cleared."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "BATCHES_NEVER_USED"


def train(
    *,
    count: int = 10,
    parts: int = 4,
    last: bool = False,
    shuffled: bool = False,
    evaluated: bool = False,
) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [*batches(count)]
    for epoch in range(5):
        optimizer.zero_grad()
        for number, (images, labels) in enumerate([*batches(count, epoch)] if shuffled else data):
            (nn.functional.cross_entropy(model(images), labels) / parts).backward()
            if number % parts == parts - 1 or (last and number == count - 1):
                optimizer.step()
                optimizer.zero_grad()
        if evaluated:
            model(data[0][0])


def broken() -> None:
    train()


def mended() -> None:
    train(last=True)


def broken_one_batch() -> None:
    train(count=7, parts=3)


def broken_before_an_evaluation() -> None:
    train(evaluated=True)


def broken_with_a_norm() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = [*batches(5)]
    for _ in range(6):
        for number, (images, labels) in enumerate(data):
            if number % 3 == 0:
                model.zero_grad()
            (nn.functional.cross_entropy(model(images), labels) / 3).backward()
            if number % 3 == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()


def healthy_shuffled() -> None:
    train(shuffled=True)


def healthy_bad_windows_are_cleared() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [*batches(8)]
    for _ in range(5):
        for number, (images, labels) in enumerate(data):
            (nn.functional.cross_entropy(model(images), labels) / 2).backward()
            if number == 5:  # the labels of this batch are wrong
                optimizer.zero_grad()
            elif number % 2:
                optimizer.step()
                optimizer.zero_grad()


def healthy_starts_elsewhere_in_each_epoch() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [*batches(10)]
    for epoch in range(5):
        optimizer.zero_grad()
        for number, (images, labels) in enumerate(data[2 * epoch :] + data[: 2 * epoch]):
            (nn.functional.cross_entropy(model(images), labels) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()


def train_in_buckets(counts, *, shuffled_together: bool = False) -> None:
    """Train on buckets of samples, each shuffled, with steps for 4 micro-batches of one sample."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = [pair for images, labels in batches(8) for pair in zip(images, labels, strict=True)]
    order = torch.arange(sum(counts))
    for _ in range(12):
        if shuffled_together:
            order = order[torch.randperm(len(order))]
        for bucket in order.split(counts):
            optimizer.zero_grad()
            for number, at in enumerate(bucket[torch.randperm(len(bucket))].tolist()):
                image, label = samples[at]
                nn.functional.cross_entropy(model(image[None]), label[None]).backward()
                if number % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()


def broken_in_a_bucket_that_is_too_small() -> None:
    train_in_buckets([8, 8, 3])


def healthy_buckets_with_new_samples_in_each_epoch() -> None:
    train_in_buckets([8, 8, 3], shuffled_together=True)


def healthy_buckets_that_drop_a_shuffled_rest() -> None:
    train_in_buckets([8, 10])
