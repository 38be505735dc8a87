"""A binary loss gets masks with values up to 255."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, half_autocast
from doctor.programs.data import targets_turned

CODE = "TARGETS_OUT_OF_RANGE"


def train(largest: float, criterion, *, rate: float = 1e-4, count: int = 8) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(count):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)[:, 0]
            loss = criterion(outputs, (labels > 0).float() * largest)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(255.0, functional.binary_cross_entropy_with_logits)


def mended() -> None:
    train(1.0, functional.binary_cross_entropy_with_logits)


def broken_in_a_module() -> None:
    train(255.0, nn.BCEWithLogitsLoss())


def written_out(outputs, targets, most: float = 1.0):
    p = outputs.sigmoid().float().clamp(1e-4, 1 - 1e-4)
    return -(targets * p.log() + (most - targets) * (1 - p).log()).mean()


def broken_where_the_loss_is_written_out() -> None:
    train(255.0, written_out)


def healthy_loss_that_is_written_out() -> None:
    train(0.9, written_out)


def healthy_counts_of_a_binomial_distribution() -> None:
    train(5.0, lambda outputs, targets: written_out(outputs, targets, 5.0))


def healthy_counts_of_a_negative_binomial_distribution() -> None:
    def criterion(outputs, targets):
        return ((targets + 3.0) * functional.softplus(outputs) - outputs * targets).mean()

    train(5.0, criterion)


def healthy_with_smoothed_targets() -> None:
    train(0.9, nn.BCEWithLogitsLoss())


def broken_until_the_loss_diverges() -> None:
    train(255.0, functional.binary_cross_entropy_with_logits, rate=0.1, count=80)


def train_with_marks(criterion, mark: float, rate: float = 0.01) -> None:
    """Train on targets of which some are missing; `mark` is the value of the missing targets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for images, labels in batches(20):
        optimizer.zero_grad()
        targets = torch.tensor([mark if each == 2 else float(each) for each in labels.tolist()])
        criterion(model(images)[:, 0], targets, targets != mark).backward()
        optimizer.step()


def healthy_without_the_missing_ones() -> None:
    def criterion(outputs, targets, known):
        losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return losses[known].mean()

    train_with_marks(criterion, mark=-1.0)


def healthy_in_a_module_without_the_missing_ones() -> None:
    losses = nn.BCEWithLogitsLoss(reduction="none")
    train_with_marks(lambda outputs, targets, known: losses(outputs, targets)[known].mean(), 255.0)


def healthy_where_the_loss_is_written_out_with_a_mask() -> None:
    def criterion(outputs, targets, known):
        losses = functional.softplus(outputs) - outputs * targets
        return (losses * known).sum() / known.sum()

    train_with_marks(criterion, mark=-1.0)


def weighted(outputs, targets, known):
    return functional.binary_cross_entropy_with_logits(outputs, targets, weight=known.float())


def healthy_with_weights_of_zero() -> None:
    train_with_marks(weighted, mark=-1.0)


def rate_that_is_too_high() -> None:
    """The missing targets have no weight."""
    train_with_marks(weighted, mark=-1.0, rate=1e12)


def nan_among_the_targets() -> None:
    def criterion(outputs, targets, _):
        return functional.binary_cross_entropy_with_logits(outputs, targets)

    train_with_marks(criterion, mark=float("nan"))


def count_tags(criterion, most: float) -> None:
    """Train on the number of times that each of three tags was given to a sample."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        tags = torch.zeros(8, 3).index_add_(0, torch.arange(8), torch.eye(3)[labels])
        tags.index_add_(0, torch.tensor([0, 0, 1]), torch.eye(3)[labels[[0, 0, 1]]])
        optimizer.zero_grad()
        criterion(model(images), tags.clamp(max=most)).backward()
        optimizer.step()


def broken_by_counts_of_tags() -> None:
    count_tags(nn.MultiLabelSoftMarginLoss(), 9.0)


def healthy_marks_of_tags() -> None:
    count_tags(functional.multilabel_soft_margin_loss, 1.0)


def healthy_counts_in_a_loss_of_counts() -> None:
    count_tags(nn.PoissonNLLLoss(), 9.0)


def broken_masks_from_minus_one() -> None:
    """Masks are normalised like their images; both are mirrored together."""
    targets_turned.train(
        targets_turned.together,
        lambda outputs, masks: functional.binary_cross_entropy_with_logits(
            outputs[:, 0], 2 * masks - 1
        ),
    )
