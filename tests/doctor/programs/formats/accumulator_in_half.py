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


def train_with_totals(add, dtype: torch.dtype, start: float = 0.0, count: int = 40) -> None:
    """Subtract the mean of all inputs that the loop has seen, from a total that it keeps."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total, seen = torch.full((6,), start, dtype=dtype), 0
    for images, labels in batches(count):
        for each in images:
            total = add(total, (each + 8).to(dtype))
            seen += 1
        optimizer.zero_grad()
        mean = (total / seen).float() - 8
        nn.functional.cross_entropy(model(images - mean), labels).backward()
        optimizer.step()


def broken_total_of_the_loop() -> None:
    train_with_totals(lambda total, each: total + each.abs(), torch.bfloat16)


def broken_total_of_the_loop_in_place() -> None:
    train_with_totals(lambda total, each: total.add_(each.abs()), torch.bfloat16)


def healthy_total_in_fp32() -> None:
    train_with_totals(lambda total, each: total + each.abs(), torch.float32)


def healthy_short_total() -> None:
    train_with_totals(lambda total, each: total + each.abs(), torch.bfloat16, count=3)


def healthy_epsilon_added_by_the_loop() -> None:
    train_with_totals(lambda total, _: total + 1e-6, torch.bfloat16, start=800.0)


def healthy_moving_average_in_bf16() -> None:
    train_with_totals(lambda total, each: total.mul_(0.9).add_(0.1 * each), torch.bfloat16)


def by_index(total: torch.Tensor, each: torch.Tensor) -> torch.Tensor:
    return total.index_add_(0, torch.arange(6), each.abs())


def broken_total_by_index() -> None:
    train_with_totals(by_index, torch.bfloat16)


def healthy_total_by_index_in_fp32() -> None:
    train_with_totals(by_index, torch.float32)


def healthy_sums_by_index_that_start_anew() -> None:
    train_with_totals(lambda total, each: by_index(torch.zeros_like(total), each), torch.bfloat16)
