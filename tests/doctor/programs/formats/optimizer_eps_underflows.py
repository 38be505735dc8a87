"""Adam on fp16 parameters, with an eps that is suitable only for fp32."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "OPTIMIZER_EPS_UNDERFLOWS"


def train(eps: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=eps)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (functional.cross_entropy(model(images.half()).float(), labels)).backward()
        optimizer.step()


def broken() -> None:
    train(1e-8)


def mended() -> None:
    train(1e-4)
