"""A forecast is fed the values that it must predict, each in the step of its prediction."""

import torch
from torch import nn
from torch.nn import functional

CODE = "TARGETS_AMONG_INPUTS"
LENGTH = 12


def batches(count: int = 24):
    """Yield series of shape (samples, positions), and what is known of each position."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        known = torch.randn(16, LENGTH + 1, 2, generator=generator)
        noise = 0.3 * torch.randn(16, LENGTH + 1, generator=generator)
        yield (known.sum(-1) + noise).cumsum(1), known


class Forecast(nn.Module):
    """Predicts each value of a series from what it is given of it, and from what is known."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        given = torch.cat([known, values[..., None]], -1)
        return self.head(self.layer(given)[0])[..., 0]


class OneStep(Forecast):
    """Predicts all values in training, and the next one only in evaluation."""

    def forward(self, values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        made = super().forward(values, known)
        return made if self.training else made[:, -1]


def train(model: nn.Module, loss_of) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for values, known in batches():
        optimizer.zero_grad()
        loss_of(model, values, known).backward()
        optimizer.step()


def same_step(model, values, known):
    return functional.mse_loss(model(values[:, 1:], known[:, 1:]), values[:, 1:])


def next_step(model, values, known):
    return functional.mse_loss(model(values[:, :-1], known[:, 1:]), values[:, 1:])


def broken() -> None:
    train(Forecast(), same_step)


def mended() -> None:
    train(Forecast(), next_step)


def broken_by_hand_in_training_mode_only() -> None:
    def loss_of(model, values, known):
        spread = torch.distributions.Normal(model(values[:, 1:], known[:, 1:]), 0.5)
        return -spread.log_prob(values[:, 1:]).mean()

    train(OneStep(), loss_of)


class Denoiser(nn.Module):
    """Predicts the values without noise, from those with noise and the size of the noise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(LENGTH + 2, 32), nn.ReLU(), nn.Linear(32, LENGTH + 1))

    def forward(self, values: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([values, size], 1))


def denoised(*, to_noisy: bool):
    def loss_of(model, values, _):
        values = values / 4
        size = torch.rand(len(values), 1)
        noisy = values + size * torch.randn_like(values)
        return functional.l1_loss(model(noisy, size), noisy if to_noisy else values)

    return loss_of


def broken_noisy_targets() -> None:
    train(Denoiser(), denoised(to_noisy=True))


def healthy_denoiser() -> None:
    train(Denoiser(), denoised(to_noisy=False))


class Diffusion(nn.Module):
    """Adds the noise itself, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = Denoiser()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        size = torch.rand(len(values), 1)
        noisy = (1 - size) * values + size * torch.randn_like(values)
        return functional.mse_loss(self.denoiser(noisy, size), values)


def healthy_noise_of_the_model() -> None:
    train(Diffusion(), lambda model, values, _: model(values / 4))


def broken_column_of_a_table() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss_of(model, values, known):
        table = torch.cat([known[:, 0], values[:, :1]], 1)
        return functional.mse_loss(model(table), values[:, :1])

    train(layers, loss_of)


class Autoencoder(nn.Module):
    """Compresses its input, given what is known of each position."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(3 * LENGTH, codes), nn.Linear(codes, LENGTH)

    def forward(self, values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        given = torch.cat([values, known.flatten(1)], 1)
        return self.decoder(torch.tanh(self.encoder(given)))


def healthy_hidden_values() -> None:
    """Some values of each sample are hidden, and what is hidden is known."""

    def loss_of(model, values, _):
        shown = (torch.rand(values[:, 1:].shape) > 0.05).float()
        return functional.mse_loss(
            model(torch.cat([values[:, 1:] * shown, shown], 1)), values[:, 1:]
        )

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2 * LENGTH, 32), nn.ReLU(), nn.Linear(32, LENGTH))
    train(layers, loss_of)


def healthy_dropout_of_inputs() -> None:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.dropout, self.first = nn.Dropout(0.2), nn.Linear(3 * LENGTH, 48)
            self.last = nn.Linear(48, LENGTH)

        def forward(self, values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
            given = torch.cat([self.dropout(values), known.flatten(1)], 1)
            return self.last(torch.relu(self.first(given)))

    train(Denoiser(), same_step)


def healthy_bottleneck() -> None:
    def loss_of(model, values, known):
        values = values[:, 1:] / 20
        return functional.mse_loss(model(values, known[:, 1:] / 4), values)

    train(Autoencoder(6), loss_of)


def healthy_wide_autoencoder_without_other_inputs() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(LENGTH + 1, 32), nn.ReLU(), nn.Linear(32, LENGTH + 1))
    train(layers, lambda model, values, _: functional.mse_loss(model(values), values))


def healthy_wide_autoencoder_with_targets_in_half() -> None:
    def loss_of(model, values, _):
        with torch.autocast("cpu", torch.bfloat16):
            made = model(values)
        return functional.l1_loss(made, values.to(made.dtype))

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(LENGTH + 1, 32), nn.ReLU(), nn.Linear(32, LENGTH + 1))
    train(layers, loss_of)


class Masked(Autoencoder):
    """Predicts each value from those before it, by masks on the weights."""

    def forward(self, values: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        earlier = torch.ones(LENGTH, LENGTH).tril(-1)
        weight = self.encoder.weight[:LENGTH, :LENGTH] * earlier
        hidden = values @ weight.T + known.sum(-1)
        return torch.cat([hidden[:, :1], hidden[:, 1:].tanh()], 1)


def healthy_masked_weights() -> None:
    train(Masked(LENGTH), same_step)


def healthy_start_of_an_equation() -> None:
    """One of two terms holds a solution to the start that it is given."""

    def loss_of(model, values, known):
        made = model(values[:, 1:], known[:, 1:])
        start = functional.mse_loss(made, values[:, 1:])
        return start + (made.diff(dim=1) - known[:, 2:].sum(-1)).square().mean()

    train(Forecast(), loss_of)
