"""A straight-through estimator lacks `detach()`, so the encoder learns nothing from the loss."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "STRAIGHT_THROUGH_CANCELS"


class Quantised(nn.Module):
    """An encoder, a codebook and a decoder.

    Args:
        estimator: Makes the decoder's input from the encoder's output and its code.
    """

    def __init__(self, estimator) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.codes = nn.Linear(6, 4), nn.Embedding(8, 4)
        self.decoder = nn.Linear(4, 3)
        self.estimator = estimator

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.encoder(images)
        code = self.codes(torch.cdist(found, self.codes.weight).argmin(1))
        commitment = functional.mse_loss(code, found.detach())
        commitment = commitment + 0.25 * functional.mse_loss(found, code.detach())
        return self.decoder(self.estimator(found, code)), commitment


def train(estimator, *, count: int = 8) -> None:
    model = Quantised(estimator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(count):
        optimizer.zero_grad()
        outputs, commitment = model(images)
        (functional.cross_entropy(outputs, labels) + commitment).backward()
        optimizer.step()


def broken() -> None:
    train(lambda found, code: found + (code - found))


def mended() -> None:
    train(lambda found, code: found + (code - found).detach())


def broken_in_the_other_order() -> None:
    train(lambda found, code: (code - found) + found)


def healthy_mixture() -> None:
    """A part of the way from one to the other."""
    train(lambda found, code: found + 0.5 * (code - found))


def healthy_weight_of_one_half_in_the_operator() -> None:
    train(lambda found, code: torch.add(found, code - found, alpha=0.5))


def healthy_estimator_of_a_rounded_value() -> None:
    train(lambda found, code: found + (found.round() - found).detach() + 0 * code)


def broken_with_a_detached_code() -> None:
    train(lambda found, code: torch.sub(code.detach(), found).add(found))


def broken_where_the_difference_comes_last() -> None:
    train(lambda found, code: found + code - found)


def healthy_detached_value_in_the_difference() -> None:
    train(lambda found, code: code.detach() - found.detach() + found)


def healthy_differences_whose_middle_cancels() -> None:
    """Steps of a path add up to its length."""
    train(lambda found, code: (code - found) + (found - found.roll(1, 0)))


def healthy_zeros_in_the_shape_of_a_value() -> None:
    train(lambda found, code: code + (found - found + 1).log())


def healthy_likelihood_of_a_sample() -> None:
    """The difference of a sample to its mean is its noise."""

    def sample(found, code):
        normal = torch.distributions.Normal(found, code.exp())
        drawn = normal.rsample()
        return drawn.tanh() - 0.01 * normal.log_prob(drawn)

    train(sample)
