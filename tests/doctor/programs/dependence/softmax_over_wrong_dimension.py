"""A log_softmax before the loss normalises over the samples of a batch."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "SOFTMAX_OVER_WRONG_DIMENSION"


def train(loss_of, *, inputs=lambda images: images, layer=None) -> None:
    torch.manual_seed(0)
    model = layer or nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss_of(model(inputs(images)), labels).backward()
        optimizer.step()


def broken() -> None:
    train(lambda outputs, labels: functional.nll_loss(torch.log_softmax(outputs, 0), labels))


def mended() -> None:
    train(lambda outputs, labels: functional.nll_loss(torch.log_softmax(outputs, 1), labels))


def broken_probabilities_of_a_squared_error() -> None:
    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        probabilities = outputs.softmax(dim=0)
        return functional.mse_loss(probabilities, functional.one_hot(labels, 3).float())

    train(loss_of)


def segmented(dim: int) -> None:
    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pixels = labels[:, None, None].expand(-1, 2, 3).contiguous()
        return functional.nll_loss(functional.log_softmax(outputs, dim=dim), pixels)

    torch.manual_seed(0)
    layer = nn.Conv2d(1, 4, 1)
    train(loss_of, inputs=lambda images: images.view(8, 1, 2, 3), layer=layer)


def broken_width_of_an_image() -> None:
    segmented(-1)


def tagged(dim: int, flat) -> None:
    """Tag each of three positions; `flat` lays their scores out for the loss."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logarithms = functional.log_softmax(outputs.view(8, 3, 4), dim=dim)
        tags = labels[:, None].expand(-1, 3)
        return functional.nll_loss(*flat(logarithms, tags))

    torch.manual_seed(0)
    train(loss_of, layer=nn.Linear(6, 12))


def in_rows(logarithms, tags):
    return logarithms.reshape(-1, 4), tags.reshape(-1)


def broken_positions_in_rows() -> None:
    tagged(1, in_rows)


def broken_positions_behind_the_classes() -> None:
    tagged(1, lambda logarithms, tags: (logarithms.transpose(1, 2), tags))


def healthy_positions_in_rows() -> None:
    tagged(-1, in_rows)


def healthy_positions_behind_the_classes() -> None:
    tagged(2, lambda logarithms, tags: (logarithms.permute(0, 2, 1), tags))


def by_hand(dims, *, pick):
    """Return a loss of scores, the logarithm of whose exponentials' sum is taken over `dims`."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        chosen = pick(outputs, labels)
        norm = torch.logsumexp(outputs, dims, keepdim=True)
        return -(chosen - pick(norm.expand_as(outputs), labels)).mean()

    return loss_of


def gathered(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.gather(1, labels[:, None]).squeeze(1)


def broken_normaliser_by_hand() -> None:
    train(by_hand(0, pick=gathered))


def broken_normaliser_of_positions() -> None:
    """The scores of an image's pixels are normalised over its rows."""

    def pick(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return outputs.gather(1, labels[:, None, None, None].expand(-1, 1, 2, 3))

    layer = nn.Conv2d(1, 4, 1)
    train(by_hand(2, pick=pick), inputs=lambda images: images.view(8, 1, 2, 3), layer=layer)


def broken_normaliser_of_indexed_scores() -> None:
    train(by_hand(0, pick=lambda outputs, labels: outputs[torch.arange(8), labels]))


def healthy_normaliser_by_hand() -> None:
    train(by_hand(1, pick=gathered))


def healthy_normaliser_of_all_scores() -> None:
    """One distribution over the classes of all samples together."""
    train(by_hand((0, 1), pick=gathered))


def healthy_normaliser_of_other_scores() -> None:
    """A bonus for a spread over the samples, beside the score of the class."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = by_hand(1, pick=gathered)(outputs, labels)
        return loss + 0.1 * (torch.logsumexp(outputs.square(), 0) - outputs.mean(0)).mean()

    train(loss_of)


def healthy_classes_of_pixels() -> None:
    segmented(1)


def healthy_probabilities_of_classes() -> None:
    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs.softmax(1), functional.one_hot(labels, 3).float())

    train(loss_of)


def healthy_similarities_of_both_sides() -> None:
    """Each image finds its text, and each text its image."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        del labels
        similarities, pairs = outputs @ outputs.roll(1, 0).T, torch.arange(8)
        one = functional.nll_loss(functional.log_softmax(similarities, 0), pairs)
        return one + functional.nll_loss(functional.log_softmax(similarities, 1), pairs)

    train(loss_of)


def healthy_weights_of_samples() -> None:
    """Hard samples count more: their weights sum to 1 over the batch."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        each = functional.cross_entropy(outputs, labels, reduction="none")
        return (each.detach().softmax(0) * each).sum()

    train(loss_of)


def healthy_pooling_over_positions() -> None:
    """Attention over the first dimension, which is that of positions."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pooled = (outputs.softmax(0) * outputs).sum(0, keepdim=True)
        return functional.cross_entropy(pooled, labels[:1])

    train(loss_of)


def overlap(dim: int) -> None:
    """The overlap of regions, with one-hot targets of shape (samples, classes, height, width)."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pixels = (labels[:, None, None] + torch.arange(6).view(2, 3)) % 4
        targets = functional.one_hot(pixels, 4).movedim(-1, 1).float()
        return 1 - (outputs.softmax(dim) * targets).sum((0, 2, 3)).mean()

    torch.manual_seed(0)
    train(loss_of, inputs=lambda images: images.view(8, 1, 2, 3), layer=nn.Conv2d(1, 4, 1))


def broken_overlap_of_regions() -> None:
    overlap(-1)


def healthy_overlap_of_regions() -> None:
    overlap(1)


def healthy_sample_that_each_class_chooses() -> None:
    """A softmax over classes, of which the best sample of each is chosen."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        chosen = functional.one_hot(outputs.argmax(0), 8).T
        weights = outputs.softmax(1) * chosen
        return functional.cross_entropy(outputs, labels) - 0.1 * weights.sum()

    train(loss_of)


def healthy_places_of_one_target() -> None:
    """A heat map, normalised over its places, of which one is the target in each row."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        maps = outputs.softmax(1)
        return ((maps - functional.one_hot(labels, 3).float()) ** 2).sum()

    train(loss_of)


def chosen(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -probabilities.gather(1, labels[:, None]).squeeze(1).log().mean()


def broken_probabilities_of_actions() -> None:
    train(lambda outputs, labels: chosen(outputs.softmax(0), labels))


def broken_distribution_of_actions() -> None:
    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -torch.distributions.Categorical(outputs.softmax(0)).log_prob(labels).mean()

    train(loss_of)


def healthy_probabilities_of_actions() -> None:
    train(lambda outputs, labels: chosen(outputs.softmax(1), labels))


def healthy_matching_that_ends_with_the_classes() -> None:
    """Rounds of Sinkhorn: each class takes its share of the samples."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            outputs = outputs.log_softmax(0).log_softmax(1)
        return functional.nll_loss(outputs, labels) + chosen(outputs.exp(), labels)

    train(loss_of)


def healthy_attention_over_the_samples() -> None:
    """Each column weighs the samples of a bag; no class is picked from the weights."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.softmax(0).T @ outputs, labels[:3])

    train(loss_of)


def smoothed(dim: int):
    """Return a loss of labels of which a share goes to the other classes."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = 0.9 * functional.one_hot(labels, 3) + 0.1 / 3
        return -(targets * outputs.log_softmax(dim)).sum(1).mean()

    return loss_of


def broken_smoothed_labels() -> None:
    train(smoothed(0))


def healthy_smoothed_labels() -> None:
    train(smoothed(1))


def healthy_ranking_of_the_samples() -> None:
    """The samples are a list that is ranked by three criteria."""

    def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wanted = (labels[:, None] - torch.arange(3)).abs().float().softmax(0)
        return -(wanted * outputs.log_softmax(0)).sum(0).mean()

    train(loss_of)
