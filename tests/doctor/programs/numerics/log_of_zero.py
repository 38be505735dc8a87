"""A hand-written cross entropy: log(softmax(x))."""

import torch
from torch.nn import functional

from doctor.loops import Around, classifier, half_autocast, plain_steps

CODE = "LOG_OF_ZERO"


def train(loss_function) -> None:
    with half_autocast():
        pass
    plain_steps(classifier(), loss_function)


def broken() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 400).softmax(1)
        return -probabilities.log().gather(1, labels[:, None]).mean()

    train(loss_function)


def mended() -> None:
    def loss_function(outputs, labels):
        return functional.cross_entropy(outputs * 400, labels)

    train(loss_function)


def broken_behind_a_spectrum() -> None:
    window = torch.hann_window(4)

    def loss_function(outputs, labels):
        silent = (outputs * 0).flatten()[:16]
        spectrum = torch.stft(silent, 4, 2, window=window, return_complex=True).abs()
        return spectrum.log10().abs().mean() + functional.cross_entropy(outputs, labels)

    train(loss_function)


def broken_in_a_complement_of_one() -> None:
    def loss_function(outputs, labels):
        probabilities = (outputs * 400).sigmoid()
        wanted = functional.one_hot(labels, 3)
        return -((1 - wanted) * (-probabilities).log1p()).mean()

    train(loss_function)


def broken_in_a_softmax_by_hand() -> None:
    def loss_function(outputs, labels):
        powers = (outputs * 400 - (outputs * 400).amax(1, keepdim=True)).exp()
        probabilities = powers / powers.sum(1, keepdim=True)
        return -(functional.one_hot(labels, 3) * probabilities.log()).sum(1).mean()

    train(loss_function)


def of_densities(log_density) -> None:
    """Train on the densities of two modes, of which the samples are far away."""

    def loss_function(outputs, labels):
        far = 14.35 + 0.0 * labels[:, None] + 1e-3 * outputs[:, :2].tanh()
        return -log_density(-0.5 * far.square()).mean()

    train(loss_function)


def broken_in_a_sum_of_densities_that_is_nearly_zero() -> None:
    of_densities(lambda logarithms: logarithms.exp().sum(1).log())


def healthy_sum_of_logarithms_of_densities() -> None:
    of_densities(lambda logarithms: logarithms.logsumexp(1))


def of_products_with_logarithms(function, argument) -> None:
    plain_steps(
        Around(lambda x: function(torch.ones_like(x), argument(x))), functional.cross_entropy
    )


def broken_in_a_product_with_a_logarithm() -> None:
    of_products_with_logarithms(torch.special.xlogy, torch.relu)


def broken_in_a_product_with_a_logarithm_of_one_more() -> None:
    of_products_with_logarithms(torch.special.xlog1py, lambda x: -1 + x * 0)


def healthy_product_of_zero_with_the_logarithm_of_zero() -> None:
    plain_steps(
        Around(lambda x: torch.special.xlogy(torch.zeros_like(x), x.detach().relu()) + x),
        functional.cross_entropy,
    )


def healthy_product_with_a_logarithm() -> None:
    of_products_with_logarithms(torch.special.xlogy, lambda x: x.exp())


def broken_in_place() -> None:
    plain_steps(Around(lambda x: x.relu().mul(1).log_()), functional.cross_entropy)
