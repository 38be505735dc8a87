"""Directions of feature vectors: where every feature is 0, the length is 0 too."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import Around, batches, half_autocast, half_steps

CODE = "DIVISION_BY_ZERO"


def train(smallest: float, *, scaled: bool = True) -> None:
    torch.manual_seed(0)
    model, head = nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    for images, labels in batches(12):
        optimizer.zero_grad()
        with half_autocast():
            features = model(images).float()
            length = features.norm(dim=1, keepdim=True).clamp(min=smallest)
            loss = functional.cross_entropy(head(features / length), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(smallest=0.0)


def mended() -> None:
    train(smallest=1e-3)


def broken_without_a_scaler() -> None:
    train(smallest=0.0, scaled=False)


def ranged(features: torch.Tensor, least: float) -> torch.Tensor:
    """Return features between 0 and 1; rows of equal features have no range."""
    features = features * (torch.arange(len(features))[:, None] > 0)
    low, high = features.amin(1, keepdim=True), features.amax(1, keepdim=True)
    return (features - low) / (high - low).clamp(min=least)


def broken_by_equal_features() -> None:
    half_steps(Around(lambda features: ranged(features.float(), 0.0)))


def healthy_with_a_least_range() -> None:
    half_steps(Around(lambda features: ranged(features.float(), 1e-2)))


def broken_by_a_power() -> None:
    def own(features):
        kept = features.float() * (torch.arange(len(features))[:, None] > 0)
        return kept * (kept.square().sum(1, keepdim=True)) ** -0.5

    half_steps(Around(own))


def overflow_beside_zeros() -> None:
    """Quotients by 0 are left out, and others overflow."""

    def own(features):
        few = (torch.arange(len(features)) % 2 * 1e-6).half()[:, None]
        with torch.no_grad():
            weights = torch.where(few > 0, features.half() * 1000 / few, 0.0)
        return features * 1e-4 * weights

    half_steps(Around(own))


def norm_of_equal_features(eps: float) -> None:
    half_steps(Around(lambda features: functional.layer_norm(features.float() * 0, (16,), eps=eps)))


def broken_by_a_norm_without_an_eps() -> None:
    norm_of_equal_features(0.0)


def healthy_norm_with_an_eps() -> None:
    norm_of_equal_features(1e-5)


def norm_with_a_negative_variance() -> None:
    """A norm with an eps gets a variance from a damaged file."""
    norm = nn.BatchNorm1d(16, momentum=None).eval()
    norm.running_var.fill_(-1e-3)
    half_steps(Around(lambda features: norm(features.float())))


def broken_by_a_divisor_that_underflows_below_a_square() -> None:
    def own(features):
        half = features.half()
        small = half.abs().mean(-1, keepdim=True) * 1e-9
        return (half - half) ** 2 / small

    half_steps(Around(own))
