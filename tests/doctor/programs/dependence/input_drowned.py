"""A variational autoencoder averages its reconstruction over all elements, and sums its codes."""

import torch
from torch import nn
from torch.nn import functional

CODE = "INPUT_DROWNED"
SIZE, CODES = 64, 3


def samples(count: int):
    """Yield batches of waves of several phases."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        phases = 6.3 * torch.rand(16, 1, generator=generator)
        yield torch.sin(torch.linspace(0, 6, SIZE) + phases)


class Autoencoder(nn.Module):
    """Encodes to means and noise, and decodes.

    Args:
        draw: Returns codes from means and the logarithms of variances.
        passes_input: Whether the decoder sees the input as well.
    """

    def __init__(self, draw, *, passes_input: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(SIZE, 32), nn.Tanh(), nn.Linear(32, 2 * CODES))
        given = CODES + SIZE * passes_input
        self.decoder = nn.Sequential(nn.Linear(given, 32), nn.Tanh(), nn.Linear(32, SIZE))
        self.draw, self.passes_input = draw, passes_input

    def forward(self, inputs: torch.Tensor):
        means, logs = self.encoder(inputs).chunk(2, 1)
        codes = self.draw(means, logs) if self.training else means
        codes = torch.cat([codes, inputs], 1) if self.passes_input else codes
        divergence = -0.5 * (1 + logs - means.square() - logs.exp()).sum(1).mean()
        return self.decoder(codes), divergence


def drawn(means: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
    return means + torch.randn_like(means) * (0.5 * logs).exp()


def train(model: nn.Module, loss_of, count: int = 160) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for inputs in samples(count):
        outputs, divergence = model(inputs)
        optimizer.zero_grad()
        loss_of(outputs, inputs, divergence).backward()
        optimizer.step()


def mean(outputs, inputs, divergence):
    return functional.mse_loss(outputs, inputs) + divergence


def sum_of_elements(outputs, inputs, divergence):
    return (outputs - inputs).square().sum(1).mean() + divergence


def broken() -> None:
    train(Autoencoder(drawn), mean)


def mended() -> None:
    train(Autoencoder(drawn), sum_of_elements)


def broken_with_a_distribution() -> None:
    def draw(means, logs):
        return torch.distributions.Normal(means, (0.5 * logs).exp()).rsample()

    train(Autoencoder(draw), mean)


def healthy_small_weight_of_the_divergence() -> None:
    train(
        Autoencoder(drawn),
        lambda outputs, inputs, divergence: mean(outputs, inputs, 0.01 * divergence),
    )


def healthy_first_steps() -> None:
    train(Autoencoder(drawn), mean, 8)


def healthy_decoder_that_sees_the_input() -> None:
    train(Autoencoder(drawn, passes_input=True), mean)


class Noisy(nn.Module):
    """A classifier whose features get a little noise of a learned size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(SIZE, 8), nn.Linear(8, SIZE)
        self.size = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, inputs: torch.Tensor):
        features = self.layer(inputs)
        features = features + torch.randn_like(features) * self.size.expand_as(features)
        return self.head(features), torch.zeros(())


def healthy_noise_that_regularises() -> None:
    train(Noisy(), mean, 80)
