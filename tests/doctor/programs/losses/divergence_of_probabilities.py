"""A student is trained with a divergence of probabilities, in place of their logarithms."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "DIVERGENCE_OF_PROBABILITIES"


def distil(loss_of_scores, *, freezes: bool = False) -> None:
    model, teacher = classifier(), classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, _ in batches(6):
        with torch.no_grad():
            scores = teacher(images)
        optimizer.zero_grad()
        loss_of_scores(model(images), scores).backward()
        optimizer.step()
    model.requires_grad_(not freezes)


def broken() -> None:
    distil(lambda a, b: functional.kl_div(functional.softmax(a, 1), functional.softmax(b, 1)))


def broken_in_a_module_of_a_divergence() -> None:
    loss = nn.KLDivLoss(reduction="batchmean")
    distil(lambda a, b: loss(a.softmax(-1), b.softmax(-1)))


def broken_in_a_divergence_of_logits() -> None:
    distil(lambda a, b: functional.kl_div(a, b.softmax(1), reduction="batchmean"))


def broken_by_targets_that_are_logarithms() -> None:
    distil(lambda a, b: functional.kl_div(a.log_softmax(1), b.log_softmax(1), reduction="sum"))


def broken_by_targets_that_become_nan() -> None:
    """The logarithms get gradients on both sides, and all numbers are NaN after the first step."""

    def loss(outputs, scores):
        one, other = outputs.log_softmax(1), (outputs + scores).log_softmax(1)
        return functional.kl_div(one, other, reduction="batchmean")

    distil(loss)


def broken_of_one_distribution() -> None:
    def loss(outputs, scores):
        made, wanted = (each.softmax(1).mean(0) for each in (outputs, scores))
        return functional.kl_div(made, wanted, reduction="sum")

    distil(loss)


def mended() -> None:
    distil(lambda a, b: functional.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"))


def healthy_divergence_of_logarithms() -> None:
    loss = nn.KLDivLoss(reduction="batchmean", log_target=True)
    distil(lambda a, b: loss(a.log_softmax(1), b.log_softmax(1)))


def maps(scores: torch.Tensor) -> torch.Tensor:
    """Probabilities over both dimensions of a map of one sample, together."""
    return scores.flatten(1).softmax(1).view(-1, 3, 1)


def broken_of_maps() -> None:
    distil(lambda a, b: functional.kl_div(maps(a), maps(b), reduction="batchmean"))


def broken_over_all_samples() -> None:
    def loss(outputs, scores):
        made, wanted = (each.exp() / each.exp().sum() for each in (outputs, scores))
        return functional.kl_div(made, wanted, reduction="sum")

    distil(loss)


def healthy_of_maps() -> None:
    distil(lambda a, b: functional.kl_div(maps(a).log(), maps(b), reduction="batchmean"))


def healthy_over_all_samples() -> None:
    def loss(outputs, scores):
        made, wanted = (each.exp() / each.exp().sum() for each in (outputs, scores))
        return functional.kl_div(made.log(), wanted, reduction="sum")

    distil(loss)


class Distillation(nn.Module):
    """A loss that calls the divergence itself."""

    def __init__(self, form) -> None:
        super().__init__()
        self.form = form

    def forward(self, outputs, scores):
        soft = scores.detach().softmax(1)
        return 2 * functional.kl_div(self.form(outputs, 1), soft, reduction="batchmean")


def broken_in_a_loss_of_the_program() -> None:
    """The model is frozen after its training."""
    distil(Distillation(torch.softmax), freezes=True)


def healthy_loss_of_the_program() -> None:
    distil(Distillation(torch.log_softmax), freezes=True)
