"""The backward of an activation of the program's own returns its slope alone."""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from doctor.loops import Around, batches

CODE = "INCOMING_GRADIENT_IGNORED"


class Cube(torch.autograd.Function):
    """A smooth activation, whose backward lacks the gradient of the loss."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 / 3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return x**2


class Right(Cube):
    """The same with a right backward."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x**2


def train(between, *, loss_of=functional.cross_entropy, scale: float = 1.0) -> None:
    model = Around(between)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for images, labels in batches(6):
        optimizer.zero_grad()
        (scale * loss_of(model(images), labels)).backward()
        optimizer.step()


def broken() -> None:
    train(Cube.apply)


def mended() -> None:
    train(Right.apply)


class Scaled(torch.autograd.Function):
    """A product with a constant, through a wrapper of its backward."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor, ctx.shape = factor, x.shape
        return x * factor

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        return torch.full(ctx.shape, ctx.factor), None


def broken_with_another_argument() -> None:
    train(lambda x: Scaled.apply(x, 0.5))


class Mixed(torch.autograd.Function):
    """A product with a weight, whose backward lacks the gradient of the loss for both."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return weight.expand_as(x), x.sum(0)


class Layer(nn.Module):
    """Multiplies features by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x):
        return Mixed.apply(x, self.weight)


def broken_for_inputs_and_weights() -> None:
    train(Layer())


class Step(torch.autograd.Function):
    """Signs, whose backward passes on whether the input is small, and no gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad_output):
        return (ctx.saved_tensors[0].abs() <= 1).to(grad_output.dtype)


def broken_with_saturated_inputs() -> None:
    train(lambda x: Step.apply(x + 9 * x.detach().sign()))


class Loss(torch.autograd.Function):
    """A squared norm whose backward takes for granted that it is the loss."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum() / 2

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.saved_tensors[0]


def broken_for_a_loss_that_is_scaled() -> None:
    train(nn.Identity(), loss_of=lambda outputs, _: Loss.apply(outputs), scale=0.25)


def healthy_function_that_is_the_loss() -> None:
    train(nn.Identity(), loss_of=lambda outputs, _: Loss.apply(outputs))


class Hinge(Loss):
    """A loss that all samples have reached, and whose backward takes for granted that it is one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(-(x < 9).to(x))
        return (9 - x).relu().sum() + 1


def healthy_loss_without_gradients() -> None:
    train(nn.Identity(), loss_of=lambda outputs, _: Hinge.apply(outputs + 99))


def function(backward):
    """Return an identity with a backward of a kind."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

    Identity.backward = staticmethod(backward)
    return Identity.apply


def healthy_reversal() -> None:
    train(function(lambda _, gradient: -0.1 * gradient))


def healthy_straight_through() -> None:
    train(function(lambda _, gradient: gradient))


def healthy_clipping() -> None:
    train(function(lambda _, gradient: gradient.clamp(-1e-9, 1e-9)))


def healthy_normalising() -> None:
    train(function(lambda _, gradient: gradient / gradient.norm()))


def healthy_sign() -> None:
    train(function(lambda _, gradient: 0.01 * gradient.sign()))


def healthy_stop() -> None:
    """No gradient on purpose, beside the path around it."""
    stop = function(lambda _, gradient: torch.zeros_like(gradient))
    train(lambda x: x + stop(x))


def healthy_penalty() -> None:
    """A penalty on activations that is added to their gradient."""
    train(function(lambda ctx, gradient: gradient + 0.01 * ctx.saved_tensors[0].sign()))


class Balance(torch.autograd.Function):
    """Adds the gradient of another loss, which is not a part of the value."""

    @staticmethod
    def forward(ctx, x, loss):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.full((), 0.01)


def healthy_other_loss() -> None:
    train(lambda x: Balance.apply(x, x.square().mean()))
