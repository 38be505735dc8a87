"""A variance computed as E[x^2] - E[x]^2, which fp16 rounds to less than 0."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import Around, batches, half_autocast, half_steps, plain_steps

CODE = "OUTSIDE_DOMAIN"


def spread(features: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation of each row, as the root of E[x^2] - E[x]^2."""
    mean = features.mean(-1, keepdim=True)
    return ((features * features).mean(-1, keepdim=True) - mean * mean + 1e-2).sqrt()


def far_from_zero(features: torch.Tensor) -> torch.Tensor:
    return 0.1 * features + 30


def broken() -> None:
    half_steps(Around(lambda features: features / spread(far_from_zero(features).half())))


def mended() -> None:
    half_steps(Around(lambda features: features / spread(far_from_zero(features.float()))))


def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(6, 3)


def broken_by_arccosine() -> None:
    half_steps(linear(), lambda outputs, _: (outputs.float() * 10).acos().mean(), count=10)


def healthy_arccosine() -> None:
    half_steps(linear(), lambda outputs, _: (outputs.float().tanh() * 0.9).acos().mean())


def root_of_the_positive(outputs: torch.Tensor, inside: float | None) -> torch.Tensor:
    positive = outputs > 0
    argument = outputs if inside is None else torch.where(positive, outputs, inside)
    return torch.where(positive, argument.sqrt(), 0.0).mean()


def broken_in_the_branch_that_where_leaves_out() -> None:
    half_steps(linear(), lambda outputs, _: root_of_the_positive(outputs.float(), None), count=10)


def healthy_where_the_argument_is_selected() -> None:
    half_steps(linear(), lambda outputs, _: root_of_the_positive(outputs.float(), 1.0), count=10)


def broken_in_one_batch_without_a_scaler() -> None:
    def loss(outputs, labels):
        few = (labels == 0).sum() > 4
        return (outputs - 20 if few else outputs.square() + 1).log().mean()

    plain_steps(linear(), loss, count=12)


def broken_under_a_loss_scale_of_the_loop() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale = 64.0
    for images, _ in batches(10):
        with half_autocast():
            outputs = model(images * 10).float()
        optimizer.zero_grad()
        (outputs.acos().mean() * scale).backward()
        if all(each.grad.isfinite().all() for each in model.parameters()):
            for each in model.parameters():
                each.grad /= scale
            optimizer.step()
        else:
            scale /= 2


def broken_just_above_1() -> None:
    def loss(outputs, _):
        directions = nn.functional.normalize(outputs, dim=1)
        return (directions * directions.detach()).sum(1).acos().mean()

    plain_steps(linear(), loss, count=12)


class Doubling:
    """Doubles a loss."""

    def double(self, loss: torch.Tensor) -> torch.Tensor:
        return 2 * loss


def logarithm_of(loss: torch.Tensor) -> torch.Tensor:
    optimizer = Doubling()
    return optimizer.double(loss).log().mean()


def broken_in_a_function_with_other_names() -> None:
    model = linear()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, _ in batches(4):
        sgd.zero_grad()
        total = logarithm_of(model(images))
        total.backward()
        sgd.step()


def powers_of_a_negative_number() -> None:
    plain_steps(linear(), lambda outputs, _: ((-2.0) ** outputs).mean())


def powers_of_a_negative_fraction() -> None:
    plain_steps(linear(), lambda outputs, _: ((-2.5) ** outputs).mean())


def distances(rows: torch.Tensor) -> torch.Tensor:
    """Return the distances of all pairs of rows, from their products."""
    squares = rows.float().square().sum(1)
    products = rows @ rows.T
    squared = squares[:, None] + squares[None, :] - 2 * products
    return (squared + 1e-6).sqrt()


def broken_by_a_product_in_half_on_another_line() -> None:
    half_steps(linear(), lambda outputs, _: distances(outputs.half() * 10 + 100).mean())


def broken_by_a_variance_that_cancels() -> None:
    def own(features):
        large = features.bfloat16() + 30
        mean = large.mean(-1, keepdim=True)
        variance = (large * large).mean(-1, keepdim=True) - mean * mean
        return ((large - mean) / torch.sqrt(variance + 1e-5)).float()

    half_steps(Around(own))


def of_quantiles(function) -> None:
    plain_steps(Around(function), functional.cross_entropy)


def broken_in_a_logit() -> None:
    of_quantiles(lambda features: torch.logit(features * 3))


def broken_in_a_quantile_of_the_normal_distribution() -> None:
    of_quantiles(lambda features: torch.special.ndtri(features * 3))


def broken_in_a_product_with_a_logarithm() -> None:
    of_quantiles(lambda features: torch.special.xlogy(torch.ones_like(features), features))


def healthy_quantiles() -> None:
    of_quantiles(lambda features: torch.special.ndtri(features.sigmoid().clamp(1e-3, 1 - 1e-3)))


def healthy_logit_with_an_eps() -> None:
    of_quantiles(lambda features: torch.logit(features * 3, eps=1e-3))
