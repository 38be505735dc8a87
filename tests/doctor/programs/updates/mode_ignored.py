"""A module drops values in evaluation mode, too, as it does not tell a function its mode."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "MODE_IGNORED"


def drop_rows(images: torch.Tensor, share: float, training: bool = False) -> torch.Tensor:
    if not training:
        return images
    return images * torch.rand(len(images), 1).gt(share) / (1 - share)


class Net(nn.Module):
    def __init__(self, drop) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(6, 8), nn.Linear(8, 3), drop

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.first(images)))


class Untold(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.dropout(images, 0.2)


class ToldOnce(nn.Module):
    """One of two functions is told the mode; the share is a setting."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"drop": 0.2}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.dropout(images, self.settings["drop"])
        return functional.dropout(torch.relu(images), 0.1, training=self.training)


class ToldByItsCaller(nn.Module):
    """A relative: the method that drops is told whether it should be called."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.augmented(images, self.training)

    def augmented(self, images: torch.Tensor, drops: bool) -> torch.Tensor:
        return functional.dropout(images, 0.2) if drops else images


class InOneMode(nn.Module):
    """A relative: an argument of a function is dropped in training mode only."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(functional.dropout(images, 0.2) if self.training else images)


class Told(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.dropout(images, 0.2, self.training)


class Without(nn.Module):
    """A relative: nothing is dropped."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.dropout(images, 0.0)


class Sampling(nn.Module):
    """A relative: samples of a distribution of results are drawn on purpose."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.dropout(images, 0.2, training=True)


class OnlyInTraining(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            images = functional.dropout(images, 0.2)
        return images


class HelpedInTraining(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.augmented(images) if self.training else images

    def augmented(self, images: torch.Tensor) -> torch.Tensor:
        return functional.dropout(images, 0.2)


class New(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.Dropout(0.2)(images)


class Rows(nn.Module):
    def __init__(self, share: float = 0.25) -> None:
        super().__init__()
        self.share = share

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return drop_rows(images, self.share)


class ToldRows(Rows):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return drop_rows(images, self.share, training=self.training)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.1

    def share(self) -> float:
        return self.dropout

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.attend(images)

    def attend(self, images: torch.Tensor) -> torch.Tensor:
        rows = images.view(1, *images.shape)
        return functional.scaled_dot_product_attention(
            rows, rows, rows, dropout_p=self.dropout
        ).flatten(0, 1)


class ToldAttention(Attention):
    def attend(self, images: torch.Tensor) -> torch.Tensor:
        rows, share = images.view(1, *images.shape), self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=share)[0]


class Noise(nn.Module):
    """Adds noise in training mode; its own train() forgets the flag."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.1)

    def train(self, mode: bool = True) -> nn.Module:
        self.inner.train(mode)
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            images = images + torch.randn_like(images)
        return self.inner(images)


class ToldNoise(Noise):
    def train(self, mode: bool = True) -> nn.Module:
        """Set the mode of all modules."""
        return super().train(mode)


def train(drop: nn.Module, *, evaluates: bool = True) -> None:
    model = Net(drop)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        model.train()
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if evaluates:
            model.eval()
            with torch.no_grad():
                model(images)


def broken() -> None:
    train(Untold())


def mended() -> None:
    train(Told())


def broken_beside_a_function_that_is_told() -> None:
    train(ToldOnce())


def broken_in_attention() -> None:
    train(Attention())


def broken_in_a_layer_that_is_always_new() -> None:
    train(New())


def broken_because_it_never_drops() -> None:
    train(nn.Sequential(Rows(0.0), Rows()))


def broken_by_its_own_train() -> None:
    train(Noise())


def broken_in_attention_that_is_trained_again() -> None:
    """An evaluation in inference mode, which also takes a part of its own labels."""
    model = Net(Attention())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            own = labels.clone()[torch.arange(4)]
            assert functional.cross_entropy(model(images[:4]), own).isfinite()
        model.train()


def healthy_attention() -> None:
    train(ToldAttention())


def healthy_method_that_is_told() -> None:
    train(ToldByItsCaller())


def healthy_argument_in_one_mode() -> None:
    train(InOneMode())


def healthy_rows() -> None:
    train(ToldRows())


def healthy_train_of_its_own() -> None:
    train(ToldNoise())


def healthy_without_an_evaluation() -> None:
    train(Untold(), evaluates=False)


def healthy_as_nothing_is_dropped() -> None:
    train(Without())


def healthy_samples() -> None:
    train(Sampling())


def healthy_helped_in_training() -> None:
    train(HelpedInTraining())


def healthy_only_in_training() -> None:
    train(OnlyInTraining())
