"""Shares are normalised through `.data`, after exp() has saved its result for the backward."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import Inner, batches

CODE = "VALUES_CHANGED_BEFORE_BACKWARD"


def train(logarithms_of) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), Inner(logarithms_of))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        functional.nll_loss(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        shares = scores.exp()
        shares.data.div_(shares.data.sum(1, keepdim=True))
        return shares.log()

    train(logarithms_of)


def mended() -> None:
    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        shares = scores.exp()
        return (shares / shares.sum(1, keepdim=True)).log()

    train(logarithms_of)


def broken_clamp_of_a_sigmoid() -> None:
    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        shares = torch.sigmoid(scores)
        shares.data.clamp_(0.3, 0.7)
        return shares.log()

    train(logarithms_of)


def broken_factor_that_a_product_has_saved() -> None:
    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        factors = torch.full_like(scores, 2.0)
        products = scores * factors
        factors.data.fill_(1.0)
        return functional.log_softmax(products, 1)

    train(logarithms_of)


def healthy_write_before_the_values_are_used() -> None:
    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        scores.data.clamp_(-5.0, 5.0)
        return functional.log_softmax(scores, 1)

    train(logarithms_of)


def healthy_rounding_of_a_copy() -> None:
    """A straight-through estimator of old: the copy passes the gradient on as it is."""

    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        rounded = scores.clone()
        rounded.data.copy_(scores.data.mul(4).round().div(4))
        return functional.log_softmax(rounded, 1)

    train(logarithms_of)


def healthy_running_total() -> None:
    total = torch.zeros(3)

    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        centred = scores - total
        total.mul_(0.9).add_(0.1 * scores.detach().mean(0))
        return functional.log_softmax(centred, 1)

    train(logarithms_of)


def healthy_norm_that_runs_twice() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    head = nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        outputs = head(model(images)) + head(model(-images))
        functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def healthy_recurrent_layer_that_is_frozen() -> None:
    """Its operator writes into a column of memory of which it has saved another one."""
    torch.manual_seed(0)
    first, layer, head = nn.Linear(6, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)
    layer.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD([*first.parameters(), *head.parameters()], lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        outputs, _ = layer(first(images)[:, None].expand(-1, 3, -1))
        functional.cross_entropy(head(outputs[:, -1]), labels).backward()
        optimizer.step()


def broken_column_of_a_memory() -> None:
    def logarithms_of(scores: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(len(scores), 6)
        memory[:, ::2].copy_(torch.full_like(scores, 2.0))
        factors = memory[:, ::2]
        products = scores * factors
        memory.data[:, 2:4].fill_(1.0)
        return functional.log_softmax(products, 1)

    train(logarithms_of)
