"""The inputs are normalised for training, and not for evaluation."""

import torch
from torch import nn
from torch.nn import functional

from doctor.programs.data.samples import COUNT, Training, samples

CODE = "EVALUATION_INPUTS_UNLIKE"


def raw() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs of the size of pixels."""
    inputs, targets = samples()
    return (inputs * 40 + 128).clamp(0, 255).round(), targets


def normalised(inputs: torch.Tensor) -> torch.Tensor:
    return (inputs / 255 - 0.5) / 0.16


def train(prepared, evaluated, *, epochs: int = 3) -> None:
    inputs, targets = raw()
    training = Training()
    for _ in range(epochs):
        for start in range(0, 32, 8):
            batch = slice(start, start + 8)
            training.step(prepared(inputs[batch]), targets[batch])
        training.evaluate([(evaluated(inputs[32:]), targets[32:])])


def broken() -> None:
    train(normalised, lambda inputs: inputs / 255)


def mended() -> None:
    train(normalised, normalised)


def broken_without_the_division() -> None:
    train(lambda inputs: inputs / 255, lambda inputs: inputs)


def broken_in_the_training() -> None:
    train(lambda inputs: inputs / 255, normalised)


def broken_in_a_test_at_the_end() -> None:
    inputs, targets = raw()
    training = Training()
    for start in range(0, 32, 8):
        training.step(normalised(inputs[start : start + 8]), targets[start : start + 8])
    training.model.eval()
    with torch.inference_mode():
        training.model(inputs[32:] / 255).argmax(1)


def healthy_noise_in_training() -> None:
    def noisy(inputs: torch.Tensor) -> torch.Tensor:
        return normalised(inputs) + 0.8 * torch.randn_like(inputs)

    train(noisy, normalised)


def healthy_other_data_beside_the_usual_ones() -> None:
    """The evaluation measures how sure the model is on data that it cannot know."""
    inputs, targets = raw()
    training = Training()
    for _ in range(3):
        training.step(normalised(inputs[:32]), targets[:32])
        for mine in (normalised(inputs[32:]), 20 + 9 * torch.randn(16, 6)):
            training.evaluate([(mine, targets[32:])])


def healthy_curve_beyond_the_data() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        places = torch.rand(COUNT, 1) * 2 - 1
        optimizer.zero_grad()
        functional.mse_loss(model(places), places.sin()).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.linspace(-20, 20, 64)[:, None])
        model.train()


def healthy_adversaries() -> None:
    """A maker gets noise in training and one constant in evaluation; a judge gets both."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    makes = torch.optim.SGD(maker.parameters(), lr=1e-3)
    judges = torch.optim.SGD(judge.parameters(), lr=1e-3)
    inputs = normalised(raw()[0])
    for _ in range(4):
        with torch.no_grad():
            made = maker(torch.randn(16, 4))
        judges.zero_grad()
        (judge(made).mean() - judge(inputs[:16]).mean()).backward()
        judges.step()
        makes.zero_grad()
        (-judge(maker(torch.randn(16, 4))).mean()).backward()
        makes.step()
        maker.eval()
        with torch.no_grad():
            maker(torch.zeros(16, 4))
        maker.train()


def healthy_probe_before_the_training() -> None:
    inputs, targets = raw()
    training = Training()
    training.model.eval()
    with torch.no_grad():
        training.model(torch.randn(32, 6))
    training.model.train()
    for _ in range(4):
        training.step(inputs / 255, targets)


def broken_in_a_model_without_modes() -> None:
    inputs, targets = raw()
    training = Training()
    for _ in range(3):
        for start in range(0, 32, 8):
            batch = slice(start, start + 8)
            training.step(normalised(inputs[batch]), targets[batch])
        with torch.no_grad():
            training.model(inputs[32:] / 255).argmax(1)


def healthy_bursts_in_training() -> None:
    """Some large samples occur in the training only."""

    def bursting(inputs: torch.Tensor) -> torch.Tensor:
        return normalised(inputs) * torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 9])[:, None]

    train(bursting, normalised)


def healthy_draws_that_a_model_gives_another() -> None:
    """A decoder is trained with noise around what an encoder gives, and evaluated without it."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)
    inputs, _ = samples()
    for _ in range(3):
        for start in range(0, 32, 8):
            batch = inputs[start : start + 8]
            optimizer.zero_grad()
            code = encoder(batch)
            noisy = (0.02 * code).detach() + torch.randn(8, 6)
            loss = functional.mse_loss(decoder(noisy), batch) + code.square().mean()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            decoder(0.02 * encoder(inputs[32:]))


class Pair(nn.Module):
    """A score of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(12, 3)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.score(torch.cat([one, other], 1))


def train_pair(prepared, evaluated) -> None:
    inputs, targets = raw()
    torch.manual_seed(0)
    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        for start in range(0, 32, 8):
            batch = slice(start, start + 8)
            optimizer.zero_grad()
            outputs = model(*prepared(inputs[batch]))
            functional.cross_entropy(outputs, targets[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(*evaluated(inputs[32:]))
        model.train()


def broken_in_both_inputs() -> None:
    def both(prepared):
        return lambda inputs: (prepared(inputs), prepared(inputs.flip(1)))

    train_pair(both(normalised), both(lambda inputs: inputs / 255))


def healthy_condition_that_stays() -> None:
    """What is to be denoised is almost clean in training, and noise at first in evaluation."""

    def beside(scale):
        return lambda inputs: (scale * torch.randn_like(inputs), normalised(inputs))

    train_pair(beside(0.05), beside(1.0))


def broken_for_sound_of_16_bits() -> None:
    def sound(inputs: torch.Tensor) -> torch.Tensor:
        return (normalised(inputs) * 8000).clamp(-32768, 32767).round()

    train(lambda inputs: sound(inputs) / 32768, sound)
