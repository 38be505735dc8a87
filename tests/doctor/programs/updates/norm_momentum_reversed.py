"""The momentum of the norms is Keras's: their statistics are those of the last batch."""

import functools

import torch
from torch import nn

from doctor.loops import batches

CODE = "NORM_MOMENTUM_REVERSED"
KEPT = 0.95


def network(norm) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Linear(16, 3))


def train(model: nn.Module, *, before_evaluation=None, evaluates: bool = True, size: int = 1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        model.train()
        for number in range(5):
            parts = list(batches(size, seed=5 * epoch + number))
            images, labels = (torch.cat(each) for each in zip(*parts, strict=True))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if evaluates:
            if before_evaluation is not None:
                before_evaluation(model)
            model.eval()
            with torch.no_grad():
                model(images)


def broken() -> None:
    train(network(nn.BatchNorm1d(16, eps=1e-3, momentum=0.99)))


def mended() -> None:
    train(network(nn.BatchNorm1d(16, eps=1e-3, momentum=0.01)))


def broken_by_a_constant() -> None:
    train(network(nn.BatchNorm1d(16, momentum=KEPT)))


class OwnNorm(nn.Module):
    """A norm of the program's own, with torch's function."""

    def __init__(self, width: int, momentum: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.momentum = momentum

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(
            features, self.mean, self.variance, None, None, self.training, self.momentum
        )


class SlowNorm(OwnNorm):
    """One whose statistics keep a share of the old ones."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(features.detach().mean(0), 1 - self.momentum)
            self.variance.lerp_(features.detach().var(0), 1 - self.momentum)
            return nn.functional.batch_norm(features, None, None, training=True)
        return (features - self.mean) / (self.variance + 1e-5).sqrt()


def broken_in_a_norm_of_its_own() -> None:
    train(network(OwnNorm(16, momentum=0.99)))


def healthy_norm_of_its_own() -> None:
    train(network(OwnNorm(16, momentum=0.05)))


def healthy_norm_of_its_own_with_the_share_of_the_old_statistics() -> None:
    train(network(SlowNorm(16, momentum=0.95)))


def healthy_norm_of_its_own_that_is_not_evaluated() -> None:
    train(network(OwnNorm(16, momentum=0.99)), evaluates=False)


def broken_by_position() -> None:
    train(network(nn.BatchNorm1d(16, 1e-3, 0.9)))


def broken_by_an_attribute() -> None:
    model = network(nn.BatchNorm1d(16))
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.momentum = 0.997
    train(model)


def broken_in_a_factory() -> None:
    make = functools.partial(nn.BatchNorm1d, momentum=0.98)
    train(network(make(16)))


def broken_with_large_batches() -> None:
    """Their statistics scatter little, so this is only possible."""
    train(network(nn.BatchNorm1d(16, momentum=0.99)), size=20)


def healthy_without_an_evaluation() -> None:
    train(network(nn.BatchNorm1d(16, momentum=0.99)), evaluates=False)


def healthy_as_statistics_are_computed_anew() -> None:
    def recompute(model: nn.Module) -> None:
        norm = model[1]
        kept, norm.momentum = norm.momentum, None
        norm.reset_running_stats()
        with torch.no_grad():
            for images, _ in batches(4):
                model(images)
        norm.momentum = kept

    train(network(nn.BatchNorm1d(16, momentum=0.99)), before_evaluation=recompute)


def healthy_average_of_all_batches() -> None:
    train(network(nn.BatchNorm1d(16, momentum=None)))


def healthy_statistics_of_the_last_batch() -> None:
    train(network(nn.BatchNorm1d(16, momentum=1.0)))


def healthy_statistics_that_are_frozen() -> None:
    norm = nn.BatchNorm1d(16, momentum=0.99)
    norm.train = lambda mode=True: norm
    train(network(norm.eval()))


def healthy_as_all_batches_are_the_whole_data() -> None:
    model = network(nn.BatchNorm1d(16, momentum=0.95))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ((images, labels),) = batches(1)
    for _ in range(12):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(images)
