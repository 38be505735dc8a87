"""A root mean square norm in fp16."""

import torch
from torch import nn

from doctor.loops import Around, batches, half_steps, loss_of

CODE = "MEAN_SQUARE_OVERFLOW"


def normed(features: torch.Tensor) -> torch.Tensor:
    return features * torch.rsqrt(features.pow(2).mean(-1, keepdim=True) + 1e-6)


def broken() -> None:
    half_steps(Around(lambda features: normed(features * 900)))


def mended() -> None:
    half_steps(Around(lambda features: normed(features.float() * 900)))


def broken_by_a_product_and_a_root() -> None:
    def own(features):
        large = features.half() * 900
        return large / ((large * large).mean(-1, keepdim=True) + 1e-5).sqrt()

    half_steps(Around(own))


def broken_while_a_loss_scale_is_searched_for() -> None:
    model = Around(lambda features: normed(features * 900))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for images, labels in batches(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_in_a_sum_that_is_divided() -> None:
    def own(features):
        large = features.half() * 900
        return large * ((large**2).sum(-1, keepdim=True) / 16 + 1e-5) ** -0.5

    half_steps(Around(own))


def broken_by_a_product_of_rows_with_themselves() -> None:
    def own(features):
        large = features.half() * 900
        squares = torch.einsum("bi,bi->b", large, large).unsqueeze(-1)
        return large / (squares / 16 + 1e-5).sqrt()

    half_steps(Around(own))


def healthy_product_of_rows_with_themselves() -> None:
    def own(features):
        large = features.half() * 9
        squares = torch.einsum("bi,bi->b", large, large).unsqueeze(-1)
        return large / (squares / 16 + 1e-5).sqrt()

    half_steps(Around(own))


def healthy_for_small_features() -> None:
    half_steps(Around(lambda features: normed(features.half() * 90)))


def healthy_in_a_square_that_where_leaves_out() -> None:
    def own(features):
        large = features.detach().half() * 900
        return torch.where(large.abs() < 100, large.square() / 1e4, large / 100) + features

    half_steps(Around(own))


def broken_beside_a_residual() -> None:
    half_steps(Around(lambda features: features + normed(features.half() * 900)))


def healthy_where_it_counts_for_nothing() -> None:
    half_steps(Around(lambda features: features + normed(features.half() * 900) / 8192))


def broken_in_a_loss() -> None:
    half_steps(nn.Linear(6, 3), lambda outputs, _: ((outputs - 300) ** 2).mean())


def healthy_loss_in_fp32() -> None:
    half_steps(nn.Linear(6, 3), lambda outputs, _: ((outputs.float() - 300) ** 2).mean())


def product_of_two() -> None:
    def own(features):
        return ((features + 3000) * (features + 40)).sum(-1, keepdim=True) * 1e-6 + features

    half_steps(Around(own))


def cube() -> None:
    half_steps(Around(lambda features: (features + 60) ** 3), lambda outputs, _: outputs.mean())
