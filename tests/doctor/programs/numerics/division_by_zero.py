"""Directions of feature vectors: where every feature is 0, the length is 0 too."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import Around, batches, half_autocast, half_steps, plain_steps

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


class Weighted(nn.Module):
    def __init__(self, weigh, least: int) -> None:
        super().__init__()
        self.weigh, self.least = weigh, least

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weight = self.weigh(torch.bincount(labels, minlength=4).clamp(min=self.least))
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return (weight[labels] * losses).mean()


def train_on_counts(weigh, classes: int = 4, *, least: int = 0, first: bool = False) -> None:
    """The loss of a batch is weighted by the counts of its classes; some are absent."""
    torch.manual_seed(0)
    model, criterion = nn.Linear(6, 4), Weighted(weigh, least)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        labels = torch.arange(16) % (4 if first and step < 6 else classes)
        loss = criterion(model(torch.randn(16, 6)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def relative(counts: torch.Tensor) -> torch.Tensor:
    weight = 1.0 / counts
    return weight / weight.mean()


def broken_by_absent_classes_so_that_all_weights_are_0() -> None:
    train_on_counts(relative, classes=3, first=True)


def broken_by_shares_of_absent_classes_so_that_all_weights_are_0() -> None:
    def weigh(counts: torch.Tensor) -> torch.Tensor:
        weight = 1.0 / (counts / counts.sum())
        return weight / weight.sum()

    train_on_counts(weigh, classes=2)


def healthy_counts_of_at_least_1() -> None:
    train_on_counts(relative, classes=3, least=1)


def healthy_classes_that_are_all_present() -> None:
    train_on_counts(relative)


def healthy_weights_of_absent_classes_that_no_row_reads() -> None:
    train_on_counts(lambda counts: 1.0 / counts, classes=3)


def healthy_distances_whose_reciprocal_is_0() -> None:
    """The inf of one element becomes a weight of 0, and the others train."""
    train_on_counts(lambda counts: 1 / (1 / (counts * 1.0)), classes=3)


def of_quotients(quotient) -> None:
    plain_steps(Around(quotient), functional.cross_entropy)


def broken_beside_an_addition() -> None:
    of_quotients(lambda features: torch.addcdiv(features, features, features.relu()))


def broken_in_a_remainder() -> None:
    of_quotients(lambda features: torch.remainder(features, features * 0))


def broken_in_place() -> None:
    of_quotients(lambda features: (features * 1).div_(features.relu()))


def healthy_beside_an_addition() -> None:
    of_quotients(lambda features: torch.addcdiv(features, features, features.relu() + 1))


def healthy_remainder() -> None:
    of_quotients(lambda features: torch.remainder(features, 0.5))


def train_by_hand(least: float) -> None:
    """No optimizer makes the steps, and the sizes of the batches differ."""
    model = Around(lambda features: ranged(features, least))
    for number, (images, labels) in enumerate(batches(6)):
        loss = functional.cross_entropy(model(images), labels, reduction="sum") / (9 - number)
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(each.grad, alpha=0.01)
                each.grad = None


def broken_without_an_optimizer() -> None:
    train_by_hand(0.0)


def healthy_without_an_optimizer() -> None:
    train_by_hand(1e-3)


def differentiate(least: float) -> None:
    """The gradients come from torch.func."""
    model = Around(lambda features: ranged(features, least))
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}

    def loss_of(weights, images, labels):
        outputs = torch.func.functional_call(model, weights, (images,))
        return functional.cross_entropy(outputs, labels), outputs.mean()

    for images, labels in batches(6):
        slopes, _ = torch.func.grad(loss_of, 0, True)(weights, images, labels)  # noqa: FBT003
        weights = {name: each - 0.01 * slopes[name] for name, each in weights.items()}


def broken_in_torch_func() -> None:
    differentiate(0.0)


def healthy_in_torch_func() -> None:
    differentiate(1e-3)
