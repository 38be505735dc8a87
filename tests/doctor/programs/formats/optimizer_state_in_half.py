"""Adam with averages that are cast to bf16 to save memory."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "OPTIMIZER_STATE_IN_HALF"


class Lean(torch.optim.Optimizer):
    """Adam with averages in a chosen format."""

    def __init__(
        self,
        parameters,
        dtype: torch.dtype,
        beta: float = 0.999,
        of_squares: torch.dtype | None = None,
    ) -> None:
        super().__init__(parameters, {"lr": 0.01, "betas": (0.9, beta), "eps": 1e-8})
        self.dtype, self.of_squares = dtype, of_squares or dtype

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.move(parameter, group)

    def move(self, parameter: torch.Tensor, group) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter, dtype=self.dtype)
            state["square"] = torch.zeros_like(parameter, dtype=self.of_squares)
        first, second = group["betas"]
        mean = first * state["mean"].float() + (1 - first) * parameter.grad
        square = second * state["square"].float() + (1 - second) * parameter.grad**2
        state["mean"].copy_(mean)
        state["square"].copy_(square)
        parameter.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))


def train(dtype: torch.dtype, beta: float = 0.999, of_squares: torch.dtype | None = None) -> None:
    model = classifier()
    optimizer = Lean(model.parameters(), dtype, beta, of_squares)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(torch.bfloat16)


class Recast(Lean):
    """Casts its averages anew in each step."""

    def move(self, parameter: torch.Tensor, group) -> None:
        super().move(parameter, group)
        state = self.state[parameter]
        for name, each in state.items():
            state[name] = each.to(self.dtype)


def broken_in_an_optimizer_that_casts() -> None:
    model = classifier()
    optimizer = Recast(model.parameters(), torch.bfloat16)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def mended() -> None:
    train(torch.float32)


def healthy_with_a_factor_that_bf16_has() -> None:
    train(torch.bfloat16, 0.99)


def healthy_with_the_mean_alone_in_bf16() -> None:
    train(torch.bfloat16, of_squares=torch.float32)


def fused(dtype: torch.dtype, *, rate: float = 1e-4) -> None:
    """A fused optimizer computes in fp32, and stores its moments in the parameters' format."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images.to(dtype)).float(), labels).backward()
        optimizer.step()


def broken_in_a_fused_optimizer_of_fp16_parameters() -> None:
    fused(torch.float16)


def broken_in_a_fused_optimizer_that_diverges() -> None:
    fused(torch.float16, rate=0.05)


def healthy_fused_optimizer_of_fp32_parameters() -> None:
    fused(torch.float32)


class Rooted(torch.optim.Optimizer):
    """RMSprop whose average of squares has a name and a format of its own."""

    def __init__(self, parameters, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": 1e-6, "keep": 0.99})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            energy = self.state[parameter].setdefault(
                "energy", torch.zeros_like(parameter, dtype=self.dtype)
            )
            energy.copy_(0.99 * energy.float() + 0.01 * parameter.grad**2)
            parameter.sub_(1e-6 * parameter.grad / (energy.float().sqrt() + 1e-8))


def rooted(dtype: torch.dtype, size: float) -> None:
    model = nn.Linear(6, 3)
    optimizer = Rooted(model.parameters(), dtype)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (size * functional.cross_entropy(model(images), labels)).backward()
        optimizer.step()


def broken_in_squares_of_small_gradients() -> None:
    rooted(torch.float16, 1e-3)


def healthy_squares_in_fp32() -> None:
    rooted(torch.float32, 1e-3)


def healthy_squares_of_large_gradients() -> None:
    rooted(torch.float16, 10.0)


class Pruned(Rooted):
    """Keeps weights at 0 by a mask in fp16."""

    def step(self) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            mask = torch.arange(parameter.numel()).view_as(parameter) % 2
            self.state[parameter].setdefault("mask", mask.half())


def healthy_mask_in_fp16() -> None:
    model = nn.Linear(6, 3)
    optimizer = Pruned(model.parameters(), torch.float32)
    for images, labels in batches(4):
        optimizer.zero_grad()
        (1e-2 * functional.cross_entropy(model(images), labels)).backward()
        optimizer.step()


class Scaled(torch.optim.Optimizer):
    """Divides gradients by a root of squares that it collects in bf16.

    Args:
        parameters: The parameters to train.
        collect: Changes the collected squares, given the squares of a gradient.
    """

    def __init__(self, parameters, collect) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.collect = collect.__name__

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            squares = parameter.grad**2
            state.setdefault("v", squares.bfloat16())
            globals()[self.collect](state["v"], squares)
            parameter.sub_(1e-3 * parameter.grad / (state["v"].float().sqrt() + 1e-8))


def slow_average(v, squares) -> None:
    v.mul_(0.999).add_(squares.to(v.dtype), alpha=0.001)


def fast_average(v, squares) -> None:
    v.mul_(0.9).add_(squares.to(v.dtype), alpha=0.1)


def total(v, squares) -> None:
    v.add_(squares.to(v.dtype))


def largest(v, squares) -> None:
    torch.maximum(v, squares.to(v.dtype), out=v)


def at_random(v, squares) -> None:
    """An average that is rounded to one of both neighbours, the nearer one more often."""
    exact = 0.999 * v.float() + 0.001 * squares
    bits = exact.view(torch.int32) + torch.randint(0, 1 << 16, v.shape, dtype=torch.int32)
    v.copy_((bits & -65536).view(torch.float32))


def train_scaled(collect) -> None:
    model = classifier()
    optimizer = Scaled(model.parameters(), collect)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken_average_under_another_name() -> None:
    train_scaled(slow_average)


def healthy_fast_average() -> None:
    train_scaled(fast_average)


def healthy_total() -> None:
    train_scaled(total)


def healthy_largest_square() -> None:
    train_scaled(largest)


def healthy_average_rounded_at_random() -> None:
    train_scaled(at_random)
