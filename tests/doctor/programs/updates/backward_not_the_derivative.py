"""The backward of an activation of the program's own is the derivative of another function."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import Around, batches

CODE = "BACKWARD_NOT_THE_DERIVATIVE"


def train(between, *, loss_of=functional.cross_entropy) -> None:
    torch.manual_seed(0)
    model = Around(between)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for images, labels in batches(6):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()


def function(forward, backward):
    """Return an autograd function of one tensor.

    Args:
        forward: The function.
        backward: Returns the gradient, from the input and the gradient of the result.
    """

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Own.of(x)

        @staticmethod
        def backward(ctx, gradient):
            return Own.back(ctx.saved_tensors[0], gradient)

    Own.of, Own.back = staticmethod(forward), staticmethod(backward)
    return Own.apply


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid()


def broken() -> None:
    train(function(swish, lambda x, gradient: gradient * (1 - x.sigmoid())))


def mended() -> None:
    def backward(x, gradient):
        gate = x.sigmoid()
        return gradient * (gate + x * gate * (1 - gate))

    train(function(swish, backward))


class Product(torch.autograd.Function):
    """A product with a square weight, whose gradient is transposed."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, gradient.T @ x


class Right(Product):
    """The same with a right backward."""

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Layer(nn.Module):
    """Multiplies features by a square weight."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x):
        return self.kind.apply(x, self.weight)


def broken_for_a_weight() -> None:
    train(Layer(Product))


def healthy_product() -> None:
    train(Layer(Right))


def squares(sign: float):
    return function(
        lambda x: x.square().mean(), lambda x, gradient: sign * gradient * 2 * x / x.numel()
    )


def broken_sign_of_a_loss() -> None:
    train(nn.Identity(), loss_of=lambda outputs, _: 1e-3 * squares(-1.0)(outputs))


def healthy_loss() -> None:
    train(nn.Identity(), loss_of=lambda outputs, _: squares(1.0)(outputs))


def healthy_straight_through_steps() -> None:
    train(function(torch.sign, lambda x, gradient: gradient * (x.abs() <= 1)))


def healthy_straight_through_limits() -> None:
    train(function(lambda x: x.clamp(-0.5, 0.5), lambda x, gradient: gradient))


def healthy_reversal() -> None:
    train(function(lambda x: x.view_as(x), lambda x, gradient: -0.5 * gradient))


def healthy_surrogate_of_a_spike() -> None:
    def backward(x, gradient):
        return gradient / (1 + 10 * x.abs()).square()

    train(function(lambda x: (x > 0).float(), backward))


def healthy_exponential_with_a_limit() -> None:
    """A gradient that cannot overflow, as radiance fields use it."""
    train(function(torch.exp, lambda x, gradient: gradient * x.clamp(max=10).exp()))


class Quantised(torch.autograd.Function):
    """Rounds to a learned step size, with the gradients of LSQ."""

    @staticmethod
    def forward(ctx, x, size):
        ctx.save_for_backward(x, size)
        return (x / size).round() * size

    @staticmethod
    def backward(ctx, gradient):
        x, size = ctx.saved_tensors
        apart = (x / size).round() - x / size
        return gradient, (gradient * apart).sum().view(1)


class Quantiser(nn.Module):
    """Rounds features."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.full((1,), 0.2))

    def forward(self, x):
        return Quantised.apply(x, self.size)


def healthy_learned_step_size() -> None:
    train(Quantiser())


class Noisy(torch.autograd.Function):
    """Drops features, with the same mask in its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = (torch.rand_like(x) > 0.5).to(x)
        return x * ctx.mask * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask * 2


def healthy_random_mask() -> None:
    train(Noisy.apply)
