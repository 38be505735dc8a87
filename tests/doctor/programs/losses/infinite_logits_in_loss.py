"""Label smoothing with a masked class."""

import torch
from torch.nn import functional

from doctor.loops import classifier, half_steps

CODE = "INFINITE_LOGITS_IN_LOSS"


def train(smoothing: float) -> None:
    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, float("-inf"))
        return functional.cross_entropy(logits, labels.clamp(max=1), label_smoothing=smoothing)

    half_steps(classifier(), loss_function)


def broken() -> None:
    train(0.1)


def mended() -> None:
    train(0.0)


def broken_by_a_smoothing_of_one_s_own() -> None:
    def loss_function(outputs, labels):
        masked = outputs.float() + torch.tensor([0.0, 0.0, float("-inf")])
        logarithms = masked.log_softmax(-1)
        chosen = logarithms.gather(1, labels.clamp(max=1)[:, None])
        return -0.9 * chosen.mean() - 0.1 * logarithms.mean()

    half_steps(classifier(), loss_function)


def broken_by_soft_labels() -> None:
    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, float("-inf"))
        targets = functional.one_hot(labels.clamp(max=1), 3) * 0.9 + 0.1 / 3
        return functional.cross_entropy(logits, targets)

    half_steps(classifier(), loss_function)


def healthy_with_a_finite_mask() -> None:
    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, -1e4)
        return functional.cross_entropy(logits, labels.clamp(max=1), label_smoothing=0.1)

    half_steps(classifier(), loss_function)


def healthy_with_every_class() -> None:
    half_steps(
        classifier(),
        lambda outputs, labels: functional.cross_entropy(outputs, labels, label_smoothing=0.1),
    )


def broken_by_the_mask_of_a_label() -> None:
    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, float("-inf"))
        return functional.cross_entropy(logits, labels)

    half_steps(classifier(), loss_function)


def with_an_entropy(mask: float, *, chosen: bool = False) -> None:
    """A loss of masked logits with an entropy, possibly only of the classes that are allowed."""

    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, mask)
        logarithms = logits - logits.logsumexp(-1, keepdim=True)
        weighed = logarithms[:, :2] if chosen else logarithms
        entropy = -(weighed.exp() * weighed).sum(-1).mean()
        return functional.nll_loss(logarithms, labels.clamp(max=1)) - 0.01 * entropy

    half_steps(classifier(), loss_function)


def broken_by_a_product_of_matrices() -> None:
    """Soft labels are 0 for the masked class, and 0 * -inf is NaN."""

    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, float("-inf"))
        soft = functional.one_hot(labels.clamp(max=1), 3) * 0.9
        logarithms = logits - logits.exp().sum(-1, keepdim=True).log()
        return -torch.einsum("bc,bc->b", soft, logarithms).mean()

    half_steps(classifier(), loss_function)


def broken_by_an_entropy() -> None:
    with_an_entropy(float("-inf"))


def healthy_entropy_of_a_finite_mask() -> None:
    with_an_entropy(-1e4)


def healthy_entropy_of_the_other_classes() -> None:
    with_an_entropy(float("-inf"), chosen=True)
