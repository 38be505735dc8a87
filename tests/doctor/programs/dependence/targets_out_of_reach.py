"""A regression of standardised targets ends in a ReLU."""

import torch
from torch import nn
from torch.nn import functional

CODE = "TARGETS_OUT_OF_REACH"


def train(last: nn.Module, targets_of, loss_of=functional.mse_loss, count: int = 10) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), last)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(count):
        inputs = torch.randn(16, 6, generator=generator)
        optimizer.zero_grad()
        loss_of(model(inputs)[:, 0], targets_of(inputs)).backward()
        optimizer.step()


def standard(inputs: torch.Tensor) -> torch.Tensor:
    return inputs[:, 0] + 0.2 * inputs[:, 1]


def broken() -> None:
    train(nn.ReLU(), standard)


def mended() -> None:
    train(nn.Identity(), standard)


def broken_for_a_sigmoid() -> None:
    train(nn.Sigmoid(), lambda inputs: 3 * inputs[:, 0].abs())


def broken_in_a_difference() -> None:
    train(nn.Tanh(), lambda inputs: 4 * inputs[:, 0], lambda a, b: (a - b).abs().mean())


class Scaled(nn.Module):
    """An activation whose result is scaled and shifted by constants."""

    def __init__(self, activation, low: float, high: float) -> None:
        super().__init__()
        self.activation, self.low = activation, low
        self.register_buffer("span", torch.tensor([high - low]))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.low + self.span * self.activation(features)


def stars(inputs: torch.Tensor) -> torch.Tensor:
    return (5.5 + 2 * inputs[:, 0]).clamp(1, 10)


def broken_for_a_scaled_sigmoid() -> None:
    train(Scaled(torch.sigmoid, 0.0, 5.0), stars)


def broken_for_a_reversed_tanh() -> None:
    train(Scaled(lambda features: (1 - features.tanh()) / 2, 1.0, 4.0), stars)


def healthy_sigmoid_scaled_to_the_targets() -> None:
    train(Scaled(torch.sigmoid, 0.5, 10.5), stars)


def healthy_scale_that_is_learned() -> None:
    last = Scaled(torch.tanh, 5.0, 6.0)
    last.span = nn.Parameter(last._buffers.pop("span"))
    train(last, stars)


def healthy_scale_in_the_loss() -> None:
    train(nn.Tanh(), standard, lambda a, b: functional.mse_loss(4 * a + 0.5, b))


def healthy_targets_within_the_range() -> None:
    train(nn.Softplus(), lambda inputs: inputs[:, 0].abs())


def healthy_targets_that_are_hardly_beyond() -> None:
    """Labels that are smoothed or noisy."""
    train(nn.Sigmoid(), lambda inputs: (inputs[:, 0] > 0).float() * 1.02 - 0.01)


def healthy_images_of_a_tanh() -> None:
    train(nn.Tanh(), lambda inputs: inputs[:, 0].clamp(-1, 1))


def healthy_classes() -> None:
    train(
        nn.Identity(),
        lambda inputs: (inputs[:, 0] > 0).float(),
        functional.binary_cross_entropy_with_logits,
    )


class Own(nn.Module):
    """An activation of the program."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.function(features)


def broken_for_a_sigmoid_written_by_hand() -> None:
    train(Own(lambda x: 1 / (1 + torch.exp(-x))), standard)


def broken_for_a_square() -> None:
    train(Own(torch.square), standard)


def broken_for_a_clamp() -> None:
    train(Own(lambda x: x.clamp(0, 1)), lambda inputs: 4 * inputs[:, 0].abs())


def healthy_clamp_below_only() -> None:
    train(Own(lambda x: x.clamp(min=0)), lambda inputs: 4 * inputs[:, 0].abs())


def healthy_quotient_of_exponentials() -> None:
    train(Own(lambda x: 1 / torch.exp(x)), lambda inputs: inputs[:, 0].abs())


def healthy_elu_of_targets_above() -> None:
    train(nn.ELU(), lambda inputs: inputs[:, 0].abs() - 0.5)


def train_tensors(last) -> None:
    """Train weights that are plain tensors, without an optimizer or a module."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"first": (6, 16), "second": (16, 1)}
    weights = {
        name: torch.randn(shape, generator=generator).mul(0.3).requires_grad_()
        for name, shape in shapes.items()
    }
    for _ in range(10):
        inputs = torch.randn(16, 6, generator=generator)
        outputs = last((inputs @ weights["first"]).tanh() @ weights["second"])[:, 0]
        loss = (outputs - standard(inputs)).square().mean()
        gradients = torch.autograd.grad(loss, [*weights.values()])
        with torch.no_grad():
            for each, gradient in zip(weights.values(), gradients, strict=True):
                each.sub_(0.05 * gradient)


def broken_in_a_training_of_tensors() -> None:
    train_tensors(functional.softplus)


def healthy_training_of_tensors() -> None:
    train_tensors(lambda values: values)


def healthy_clipped_values_of_a_policy() -> None:
    """The larger of two errors counts: that of the values, and that of their clipped change."""

    def loss_of(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        old = values.detach().roll(1) + 0.5
        clipped = old + (values - old).clamp(-0.2, 0.2)
        return torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()

    train(nn.Identity(), lambda inputs: 3 * standard(inputs), loss_of)
