"""A layer merges its low-rank weights when it is evaluated, and never takes them out again."""

import copy

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "WEIGHTS_CHANGED_BY_MODE"


class LowRank(nn.Linear):
    """Adds a product of two small matrices to a fixed weight."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(width, width)
        self.weight.requires_grad = False
        self.down = nn.Parameter(torch.randn(2, width) * 0.3)
        self.up = nn.Parameter(torch.zeros(width, 2))
        self.merged = False

    def delta(self) -> torch.Tensor:
        return self.up @ self.down

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out = super().forward(features)
        return out + features @ self.delta().T if self.training else out


class Merging(LowRank):
    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if not mode:
            self.weight.data += self.delta().detach()
        return self


class MergingAndBack(LowRank):
    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if self.merged == mode:
            with torch.no_grad():
                self.weight += -self.delta() if mode else self.delta()
            self.merged = not mode
        return self


class Net(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.last = nn.Linear(6, 8), inner, nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(images)))


class MergedByTheModel(Net):
    """Its eval() merges the weights of a layer, and only sets the mode otherwise."""

    def eval(self) -> nn.Module:
        self.merge()
        return super().eval()

    def merge(self) -> None:
        with torch.no_grad():
            self.inner.weight.add_(self.inner.delta())


class Fused(nn.Module):
    """Its eval() puts the norm into the layer before it, each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.first(images)
        return self.last(self.norm(features) if self.training else features)

    def eval(self) -> nn.Module:
        norm, layer = self.norm, self.first
        with torch.no_grad():
            factor = norm.weight / (norm.running_var + norm.eps).sqrt()
            layer.weight.mul_(factor[:, None])
            layer.bias.sub_(norm.running_mean).mul_(factor).add_(norm.bias)
        return super().eval()


class Noisy(Net):
    """Tests how it works with noise in the weights."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        if not mode:
            for each in self.parameters():
                each.data.add_(torch.randn_like(each), alpha=0.05)
        return self


class NoisyAndBack(Noisy):
    kept = None

    def train(self, mode: bool = True) -> nn.Module:
        if mode and self.kept is not None:
            for each, value in zip(self.parameters(), self.kept, strict=True):
                each.data.copy_(value)
            self.kept = None
        if not mode and self.kept is None:
            self.kept = [each.detach().clone() for each in self.parameters()]
        return super().train(mode)


class Normalised(Net):
    """Its eval() makes the rows of a weight as long as they are used: only once."""

    def eval(self) -> nn.Module:
        with torch.no_grad():
            self.last.weight.copy_(functional.normalize(self.last.weight))
        return super().eval()


class Swapping(Net):
    """Its eval() swaps an average in; the loop swaps it out itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.average = [each.detach().clone() for each in self.parameters()]

    def swap(self) -> None:
        for each, average in zip(self.parameters(), self.average, strict=True):
            value = each.detach().clone()
            each.data.copy_(average)
            average.copy_(value)

    def eval(self) -> nn.Module:
        self.swap()
        return super().eval()


class FixedNorms(Net):
    """Keeps a part in evaluation mode, which changes no weights."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.inner.eval()
        return self


def train(
    model: nn.Module,
    *,
    evaluated=lambda model: model,
    after=lambda model: None,
    epochs: int = 4,
) -> None:
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    for epoch in range(epochs):
        model.train()
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        tested = evaluated(model)
        tested.eval()
        with torch.no_grad():
            tested(images)
        after(tested)


def broken() -> None:
    train(Net(Merging()))


def mended() -> None:
    train(Net(MergingAndBack()))


def broken_by_the_model() -> None:
    train(MergedByTheModel(LowRank()))


def broken_by_fusing() -> None:
    train(Fused())


def broken_by_noise() -> None:
    train(Noisy(nn.Linear(8, 8)))


def healthy_noise_that_is_taken_out() -> None:
    train(NoisyAndBack(nn.Linear(8, 8)))


def healthy_merge_of_a_copy() -> None:
    train(Net(Merging()), evaluated=copy.deepcopy)


def healthy_merge_at_the_end() -> None:
    train(Net(Merging()), epochs=1)


def healthy_normalised_rows() -> None:
    train(Normalised(nn.Linear(8, 8)))


def healthy_part_in_evaluation_mode() -> None:
    train(FixedNorms(nn.Linear(8, 8)))


def healthy_average_that_the_loop_swaps_out() -> None:
    train(Swapping(nn.Linear(8, 8)), after=Swapping.swap)


class Thinned(nn.Linear):
    """Drops inputs; its weights are smaller in evaluation mode."""

    def train(self, mode: bool = True) -> nn.Module:
        if self.is_due(mode):
            with torch.no_grad():
                self.weight *= 1.25 if mode else 0.8
        return super().train(mode)

    def is_due(self, mode: bool) -> bool:
        return True

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        kept = torch.rand_like(features) < 0.8 if self.training else 1.0
        return super().forward(features * kept)


class ThinnedOnce(Thinned):
    def is_due(self, mode: bool) -> bool:
        return mode != self.training


class Pruned(nn.Linear):
    """Its train() sets pruned weights to 0 again."""

    def train(self, mode: bool = True) -> nn.Module:
        with torch.no_grad():
            self.weight[:, ::2] = 0.0
        return super().train(mode)


def train_often(model: nn.Module) -> None:
    """Call train() in each epoch, and evaluate after the last one."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        model.train()
        for images, labels in batches(4, seed=epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    model(images)


def broken_by_each_call_of_train() -> None:
    train_often(Net(Thinned(8, 8)))


def healthy_weights_that_change_with_the_mode_only() -> None:
    train_often(Net(ThinnedOnce(8, 8)))


def healthy_weights_that_are_pruned_again() -> None:
    train_often(Net(Pruned(8, 8)))


def broken_by_a_layer_that_is_replaced_after_pretraining() -> None:
    model = Net(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.inner = Merging()
    train(model, epochs=30)
