"""Statistics of all inputs, in buffers that a cast of the model has made bf16."""

import torch
from torch import nn

from doctor.loops import batches

CODE = "ACCUMULATOR_IN_HALF"


class Standardised(nn.Module):
    """Divides its inputs by their mean magnitude over everything seen in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("count", torch.full((), 2.0**14))
        self.register_buffer("total", torch.full((6,), 2.0**13))
        self.head = nn.Linear(6, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.count += len(images)
            self.total += images.abs().sum(0)
        scale = (self.total / self.count).to(images.dtype)
        return self.head((images / scale).to(self.head.weight.dtype)).float()


def train(model: nn.Module, count: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(Standardised().bfloat16())


def mended() -> None:
    model = Standardised().bfloat16()
    for name in ("count", "total"):
        setattr(model, name, getattr(model, name).float())
    train(model)


def healthy_few_numbers() -> None:
    model = Standardised()
    model.count.fill_(8.0)
    model.total.fill_(4.0)
    train(model.bfloat16())


def healthy_epsilon_added_to_a_buffer() -> None:
    class Scaled(Standardised):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head((images / (self.count + 1e-6)).to(self.head.weight.dtype)).float()

    train(Scaled().bfloat16())
