"""A distillation divides the logits of the teacher by a temperature, and not the student's."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "TEMPERATURE_ON_ONE_SIDE"
T = 4.0


def distil(loss_of_scores) -> None:
    """Train a student; the function gets its scores, the teacher's and the labels."""
    model, teacher = classifier(), classifier().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        with torch.no_grad():
            scores = teacher(images)
        optimizer.zero_grad()
        loss_of_scores(model(images), scores, labels).backward()
        optimizer.step()


def divergence(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.kl_div(made.log_softmax(1), wanted.softmax(1), reduction="batchmean")


def broken() -> None:
    def loss(made, wanted, labels):
        soft = divergence(made, wanted / T) * T**2
        return 0.9 * soft + 0.1 * functional.cross_entropy(made, labels)

    distil(loss)


def mended() -> None:
    def loss(made, wanted, labels):
        soft = divergence(made / T, wanted / T) * T**2
        return 0.9 * soft + 0.1 * functional.cross_entropy(made, labels)

    distil(loss)


def broken_in_two_factors() -> None:
    def loss(made, wanted, labels):
        return T * (T * divergence(made, wanted / T)) + functional.cross_entropy(made, labels)

    distil(loss)


def broken_in_a_cross_entropy() -> None:
    criterion = nn.CrossEntropyLoss()

    def loss(made, wanted, labels):
        targets = functional.softmax(wanted / T, dim=1).detach()
        return criterion(made, targets) * (T * T) + criterion(made, labels)

    distil(loss)


def broken_with_the_logarithms_of_the_teacher() -> None:
    criterion = nn.KLDivLoss(reduction="batchmean", log_target=True)

    def loss(made, wanted, labels):
        soft = criterion(made.log_softmax(1), functional.log_softmax(wanted * (1 / T), 1))
        return 0.5 * (soft * T**2) + functional.cross_entropy(made, labels)

    distil(loss)


def broken_without_the_square() -> None:
    def loss(made, wanted, labels):
        return divergence(made, wanted / T) + functional.cross_entropy(made, labels)

    distil(loss)


def broken_in_a_divergence_that_is_written_out() -> None:
    def loss(made, wanted, labels):
        target, logarithms = (wanted / T).log_softmax(1), made.log_softmax(1)
        soft = (target.exp() * (target - logarithms)).sum(1).mean()
        return T**2 * soft + functional.cross_entropy(made, labels)

    distil(loss)


def healthy_divergence_that_is_written_out() -> None:
    def loss(made, wanted, labels):
        target, logarithms = (wanted / T).log_softmax(1), (made / T).log_softmax(1)
        soft = (target.exp() * (target - logarithms)).sum(1).mean()
        return T**2 * soft + functional.cross_entropy(made, labels)

    distil(loss)


def healthy_student_that_is_centred_after_its_division() -> None:
    def loss(made, wanted, labels):
        del labels
        scores = made / T
        return divergence(scores - scores.mean(1, keepdim=True), wanted / T) * T**2

    distil(loss)


def healthy_sharpened_targets() -> None:
    """The temperature of the teacher is below 1, as in DINO."""

    def loss(made, wanted, labels):
        del labels
        return divergence(made / 0.1, wanted / 0.04)

    distil(loss)


def healthy_sharpened_targets_of_logits_as_they_are() -> None:
    def loss(made, wanted, labels):
        del labels
        return divergence(made, wanted / 0.5) * 0.25

    distil(loss)


def healthy_teacher_that_was_calibrated() -> None:
    """A temperature that was fitted before makes the confidence of the teacher right."""

    def loss(made, wanted, labels):
        return divergence(made, wanted / 1.7) + functional.cross_entropy(made, labels)

    distil(loss)


def healthy_smoothed_labels() -> None:
    def loss(made, wanted, labels):
        del wanted
        return 4 * functional.cross_entropy(made, labels, label_smoothing=0.1)

    distil(loss)


def healthy_student_that_multiplies() -> None:
    def loss(made, wanted, labels):
        soft = divergence(made * (1 / T), wanted * (1 / T)) * T**2
        return soft + functional.cross_entropy(made, labels)

    distil(loss)


def healthy_temperature_of_one() -> None:
    def loss(made, wanted, labels):
        return divergence(made, wanted / 1.0) * 1.0 + functional.cross_entropy(made, labels)

    distil(loss)


class Distillation(nn.Module):
    """A loss that calls the teacher itself."""

    def __init__(self, teacher: nn.Module, *, both: bool) -> None:
        super().__init__()
        self.teacher, self.both = teacher.eval().requires_grad_(requires_grad=False), both

    def forward(self, images, scores, labels):
        with torch.no_grad():
            wanted = self.teacher(images)
        scores = scores / T if self.both else scores
        return T * T * divergence(scores, wanted / T) + functional.cross_entropy(scores, labels)


def distil_by_a_module(*, both: bool) -> None:
    model, loss_of = classifier(), Distillation(classifier(), both=both)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        loss_of(images, model(images), labels).backward()
        optimizer.step()


def broken_in_a_loss_that_is_a_module() -> None:
    distil_by_a_module(both=False)


def healthy_loss_that_is_a_module() -> None:
    distil_by_a_module(both=True)
