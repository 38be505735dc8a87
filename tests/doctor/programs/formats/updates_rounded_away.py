"""A small learning rate on bf16 parameters."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "UPDATES_ROUNDED_AWAY"


def train(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for images, labels in batches(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.to(dtype)).float(), labels).backward()
        optimizer.step()


def broken() -> None:
    train(torch.bfloat16)


def mended() -> None:
    train(torch.float32)


def healthy_once_nothing_is_left_to_learn() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    wanted = torch.randn(6, 3)
    for images, _ in batches(301):
        optimizer.zero_grad()
        (functional.mse_loss(model(images.bfloat16()).float(), images @ wanted)).backward()
        optimizer.step()
