"""The hardest negative of a triplet loss is the 0 of a pair that the mask excludes."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "ONLY_MASKED_FOUND"


def train(loss_of, count: int = 6) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(count):
        optimizer.zero_grad()
        kinds = labels.clone()
        kinds[:4] = torch.tensor([0, 0, 1, 1])
        loss_of(model(images), kinds[:, None] == kinds).backward()
        optimizer.step()


def distances(codes: torch.Tensor) -> torch.Tensor:
    return (codes[:, None] - codes).square().sum(-1).clamp(min=1e-8).sqrt()


def triplets(farthest, nearest):
    """Return a loss of the farthest code of the same kind, and the nearest of another kind."""

    def loss_of(codes, same):
        gaps = distances(codes)
        return (farthest(gaps, same) - nearest(gaps, same) + 1).relu().mean()

    return loss_of


def farthest(gaps, same):
    return (gaps * same).max(1).values


def nearest(gaps, same):
    return gaps.masked_fill(same, torch.inf).min(1).values


def broken() -> None:
    train(triplets(farthest, lambda gaps, same: (gaps * ~same).min(dim=1).values))


def mended() -> None:
    train(triplets(farthest, nearest))


def broken_without_another_term() -> None:
    """No parameter gets a gradient."""
    train(lambda codes, same: 1 - (distances(codes) * ~same).amin(1).mean(), count=40)


def broken_by_a_fill() -> None:
    train(triplets(farthest, lambda gaps, same: gaps.masked_fill(same, 0).amin(1)))


def broken_by_a_huge_number_of_the_wrong_end() -> None:
    def worst(gaps, same):
        return torch.where(same, gaps, torch.tensor(1e6)).amax(dim=1).clamp(max=4)

    train(triplets(worst, nearest))


def broken_behind_a_change_of_the_sign() -> None:
    """Similarities are filled at their lowest, and then taken for distances."""

    def loss_of(codes, same):
        unit = functional.normalize(codes)
        near = (unit @ unit.T).masked_fill(same, -torch.inf)
        return ((unit @ unit.T).square().mean() - (1 - near).max(1).values.clamp(max=2)).mean()

    train(loss_of)


def broken_in_distances_of_a_cosine() -> None:
    def loss_of(codes, same):
        unit = functional.normalize(codes)
        gaps = 1 - unit @ unit.T
        return (farthest(gaps, same) - (gaps * ~same).min(1).values + 0.3).relu().mean()

    train(loss_of)


def broken_in_a_topk() -> None:
    def first(gaps, same):
        return (gaps * ~same).topk(1, dim=1, largest=False).values.mean(1)

    train(triplets(farthest, first))


def healthy_farthest() -> None:
    train(lambda codes, same: (farthest(distances(codes), same) - 1).square().mean())


def healthy_limit() -> None:
    """Whatever is farther than the margin counts as the margin."""

    def limited(gaps, same):
        return torch.where(same, torch.tensor(0.001), gaps).min(1).values

    train(lambda codes, same: (0.01 - limited(distances(codes), same)).relu().mean() + codes.mean())


def healthy_worst_violation() -> None:
    """No violation is left, so the largest one is that of the mask: there is nothing to learn."""

    def loss_of(codes, same):
        violations = (0.001 - distances(codes)) * ~same
        return violations.max(1).values.mean() + 0.01 * codes.square().mean()

    train(loss_of)


def healthy_costs_without_a_violation() -> None:
    def loss_of(codes, same):
        costs = (1e-6 - distances(codes)).clamp(min=0).masked_fill(same, 0)
        return costs.max(1).values.mean() + 0.01 * codes.square().mean()

    train(loss_of)


def healthy_pooling_of_masked_features() -> None:
    def loss_of(codes, same):
        pooled = (codes.relu() * same[:, :4]).max(1).values
        return (pooled - 1).square().mean()

    train(loss_of)


def healthy_rows_that_are_masked_as_a_whole() -> None:
    def loss_of(codes, same):
        del same
        mask = (torch.arange(8) % 2).bool()[:, None]
        return (1 - (codes.relu() * mask).max(1).values).mean()

    train(loss_of)


def healthy_numbers_without_gradients() -> None:
    def loss_of(codes, same):
        with torch.no_grad():
            weights = 1 + (distances(codes) * ~same).min(1).values
        return (weights * nearest(distances(codes), same)).mean()

    train(loss_of)
