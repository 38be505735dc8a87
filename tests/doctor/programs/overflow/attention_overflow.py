"""A product of queries and keys that is scaled too late."""

import torch

from doctor.loops import Around, batches, half_steps, loss_of
from doctor.programs.attention import Attention

CODE = "ATTENTION_LOGITS_OVERFLOW"


def train(*, scale_first: bool) -> None:
    model = Attention(800.0, scale_first=scale_first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(scale_first=False)


def mended() -> None:
    train(scale_first=True)


def of_elements(factor: float, form: torch.dtype = torch.float16) -> None:
    """Attention between samples, whose logits are sums of products, without a matrix product."""

    def attend(features: torch.Tensor) -> torch.Tensor:
        rows = (features * factor).to(form)
        logits = (rows[:, None] * rows[None]).sum(-1)
        return logits.softmax(-1).float() @ features

    half_steps(Around(attend))


def broken_in_sums_of_products() -> None:
    of_elements(150.0)


def healthy_sums_of_products_in_fp32() -> None:
    of_elements(150.0, torch.float32)


def healthy_sums_of_small_products() -> None:
    of_elements(1.0)
