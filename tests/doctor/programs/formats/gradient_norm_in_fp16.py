"""fp16 parameters with the loop's own loss scale, and the norm of gradients in fp16."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "GRADIENT_NORM_IN_FP16"


def train(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images.half()).float(), labels) * 1e5).backward()
        norm = torch.stack([each.grad.norm(dtype=dtype) for each in model.parameters()]).norm()
        for each in model.parameters():
            each.grad.mul_((1 / (norm + 1e-6)).clamp(max=1))
        optimizer.step()


def broken() -> None:
    train(torch.float16)


def mended() -> None:
    train(torch.float32)


def clipped(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images.half()).float(), labels) * factor).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def broken_in_torch_s_own_clipping() -> None:
    clipped(1.5e5)


def healthy_for_small_norms() -> None:
    clipped(1.0)


def broken_in_a_norm_of_fp32_gradients() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images), labels) * 1e4).backward()
        total = sum(each.grad.norm().half() ** 2 for each in model.parameters()).sqrt()
        for each in model.parameters():
            each.grad.mul_((1 / (total + 1e-6)).clamp(max=1))
        optimizer.step()


@torch.no_grad()
def update(parameters, masters, wide: bool) -> None:
    """Clip the gradients by a norm by hand, and step fp32 masters without an optimizer."""
    if wide:
        total = torch.stack([each.grad.float().pow(2).sum() for each in parameters]).sum().sqrt()
    else:
        total = torch.stack([each.grad.pow(2).sum() for each in parameters]).sum().sqrt()
    factor = (1 / (total + 1e-3)).clamp(max=1)
    for each, master in zip(parameters, masters, strict=True):
        each.grad.mul_(factor)
        master.sub_(each.grad.float(), alpha=0.5)
        each.copy_(master)


def train_masters(*, wide: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    masters = [each.detach().float() for each in model.parameters()]
    for images, labels in batches(4):
        model.zero_grad()
        (functional.cross_entropy(model(images.half()).float(), labels) * 3e3).backward()
        update([*model.parameters()], masters, wide)


def broken_without_an_optimizer() -> None:
    train_masters(wide=False)


def healthy_without_an_optimizer() -> None:
    train_masters(wide=True)


def train_scaled(size) -> None:
    """Divide by a norm of all gradients that is not computed in a line that names them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images.half()).float(), labels) * 3e3).backward()
        factor = (1 / (size([each.grad for each in model.parameters()]) + 1e-3)).clamp(max=1)
        for each in model.parameters():
            each.grad = each.grad * factor.to(each.grad.dtype)
        optimizer.step()


def broken_by_squares_with_gradients_enabled() -> None:
    train_scaled(lambda parts: sum((x * x).sum() for x in parts).sqrt())


def healthy_squares_in_fp32() -> None:
    train_scaled(lambda parts: sum((x.float() * x.float()).sum() for x in parts).sqrt())


def healthy_largest_element() -> None:
    train_scaled(lambda parts: torch.stack([x.abs().max() for x in parts]).max())


def flat(parts, dtype) -> torch.Tensor:
    vector = torch.cat([x.reshape(-1) for x in parts]).to(dtype)
    return torch.dot(vector, vector).sqrt()


def broken_in_one_vector() -> None:
    train_scaled(lambda parts: flat(parts, torch.float16))


def healthy_vector_in_fp32() -> None:
    train_scaled(lambda parts: flat(parts, torch.float32))
