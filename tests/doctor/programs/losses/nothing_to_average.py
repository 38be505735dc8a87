"""A batch in which every target is ignored."""

import torch
from torch.nn import functional

from doctor.loops import classifier, half_steps

CODE = "NOTHING_TO_AVERAGE"


def train(*, kept: int) -> None:
    seen = []

    def loss_function(outputs, labels):
        seen.append(len(labels))
        if len(seen) == 3:
            labels = torch.where(torch.arange(len(labels)) < kept, labels, -100)
        return functional.cross_entropy(outputs.float(), labels)

    half_steps(classifier(), loss_function)


def broken() -> None:
    train(kept=0)


def mended() -> None:
    train(kept=1)


def third(special) -> None:
    """Train with a plain loss, except for the third batch."""
    seen = []

    def loss_function(outputs, labels):
        seen.append(len(labels))
        return (special if len(seen) == 3 else functional.cross_entropy)(outputs.float(), labels)

    half_steps(classifier(), loss_function)


def broken_by_a_mask_of_one_s_own() -> None:
    def special(outputs, labels):
        wanted = labels > 5
        return (
            functional.cross_entropy(outputs, labels, reduction="none") * wanted
        ).sum() / wanted.sum()

    third(special)


def broken_by_an_empty_selection() -> None:
    third(lambda outputs, labels: functional.mse_loss(outputs[labels > 5], outputs[labels > 5] * 0))


def broken_by_pixels() -> None:
    def special(outputs, labels):
        targets = torch.full((len(labels), 1, 1), 255)
        return functional.nll_loss(
            outputs.log_softmax(-1)[..., None, None], targets, ignore_index=255
        )

    third(special)


def healthy_with_a_count_of_at_least_one() -> None:
    def special(outputs, labels):
        wanted = labels > 5
        total = (functional.cross_entropy(outputs, labels, reduction="none") * wanted).sum()
        return total / wanted.sum().clamp(min=1)

    third(special)


def broken_variance_of_one_sample() -> None:
    def loss_function(outputs, labels):
        spread = outputs[labels == labels[0]][:1].float().var(0)
        return functional.cross_entropy(outputs, labels) + (1 - spread).relu().mean()

    half_steps(classifier(), loss_function)


def healthy_variance_of_a_batch() -> None:
    def loss_function(outputs, labels):
        return (
            functional.cross_entropy(outputs, labels) + (1 - outputs.float().var(0)).relu().mean()
        )

    half_steps(classifier(), loss_function)
