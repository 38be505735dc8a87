"""A cross entropy with a minus before it is minimized."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "LOSS_WITHOUT_BOUND"


def train(loss_of, *, rate: float = 0.1, steps: int = 32, load: bool = False) -> None:
    model = classifier()
    if load:
        model.load_state_dict(classifier().state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()


def log_probabilities(scores, labels):
    return scores.log_softmax(-1).gather(1, labels[:, None]).mean()


def broken() -> None:
    train(lambda scores, labels: -nn.functional.cross_entropy(scores, labels))


def mended() -> None:
    train(nn.functional.cross_entropy)


def broken_without_a_minus() -> None:
    train(log_probabilities)


def broken_in_a_product() -> None:
    def loss(scores, labels):
        wanted = nn.functional.one_hot(labels, 3).float()
        return -1 * (scores - wanted).pow(2).mean() + 1e-4 * scores.abs().mean()

    train(loss, rate=0.1)


def healthy_log_probabilities() -> None:
    train(lambda scores, labels: -log_probabilities(scores, labels))


def healthy_density() -> None:
    """The logarithm of a density may be positive."""

    def loss(scores, labels):
        spread = scores[:, 1].exp()
        return -torch.distributions.Normal(scores[:, 0], spread).log_prob(torch.zeros(8)).mean()

    train(loss)


def healthy_policy_gradient() -> None:
    def loss(scores, labels):
        chosen = scores.log_softmax(-1).gather(1, labels[:, None])[:, 0]
        return -(chosen * torch.randn(8)).mean()

    train(loss)


def healthy_unlearning_of_loaded_weights() -> None:
    train(lambda scores, labels: -nn.functional.cross_entropy(scores, labels), load=True)


def healthy_attack() -> None:
    model = classifier().eval().requires_grad_(requires_grad=False)
    (images, labels), *_ = batches(1)
    noise = nn.Parameter(torch.zeros_like(images))
    optimizer = torch.optim.SGD([noise], lr=5.0)
    for _ in range(24):
        optimizer.zero_grad()
        (-nn.functional.cross_entropy(model(images + noise), labels)).backward()
        optimizer.step()


def healthy_adversaries() -> None:
    model, other = classifier(), nn.Linear(6, 6)
    first = torch.optim.SGD(model.parameters(), lr=0.05)
    second = torch.optim.SGD(other.parameters(), lr=0.05)
    for images, labels in batches(24):
        for sign, optimizer in ((1.0, first), (-1.0, second)):
            first.zero_grad()
            second.zero_grad()
            (sign * nn.functional.cross_entropy(model(images + other(images)), labels)).backward()
            optimizer.step()


def healthy_bounded_similarity() -> None:
    train(
        lambda scores, labels: -nn.functional.cosine_similarity(scores, scores.detach() + 1).mean()
    )


class Adversarial(nn.Module):
    """A model with a head for the group of a sample, which shall not show."""

    def __init__(self) -> None:
        super().__init__()
        self.body = classifier()
        self.head, self.group = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, images):
        features = self.body(images)
        return torch.stack([self.head(features), self.group(features)])


def train_adversarial(weight: float) -> None:
    torch.manual_seed(0)
    model = Adversarial()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for images, labels in batches(40):
        classes, groups = model(images)
        loss = nn.functional.cross_entropy(classes, labels)
        optimizer.zero_grad()
        (loss + weight * nn.functional.cross_entropy(groups, (labels + 1) % 3)).backward()
        optimizer.step()


def broken_beside_another_loss() -> None:
    train_adversarial(-2.0)


def healthy_second_loss() -> None:
    train_adversarial(0.5)


def healthy_difference_of_losses_that_stays_small() -> None:
    train_adversarial(-0.001)
