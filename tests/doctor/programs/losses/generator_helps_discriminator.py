"""A generator is trained with the label that the discriminator has for generated samples."""

import torch
from torch import nn
from torch.nn import functional

CODE = "GENERATOR_HELPS_DISCRIMINATOR"
COUNT = 16


def network(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, 16), nn.LeakyReLU(0.2), nn.Linear(16, made))


def cross_entropy(scores: torch.Tensor, label: float) -> torch.Tensor:
    labels = torch.full_like(scores, label)
    return functional.binary_cross_entropy_with_logits(scores, labels)


def squares(scores: torch.Tensor, label: float) -> torch.Tensor:
    return (scores - label).square().mean()


def wasserstein(scores: torch.Tensor, label: float) -> torch.Tensor:
    return (1 - 2 * label) * scores.mean()


def hinge(scores: torch.Tensor, label: float) -> torch.Tensor:
    return torch.relu(1 - (2 * label - 1) * scores).mean()


class Drawing(nn.Module):
    """A generator that is given the number of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network(3, 2)

    def forward(self, count: int) -> torch.Tensor:
        return self.layers(torch.randn(count, 3))


def penalty(discriminator, data: torch.Tensor) -> torch.Tensor:
    """The squared gradient of the scores of data."""
    data = data.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(discriminator(data).sum(), data, create_graph=True)
    return gradient.square().sum(1).mean()


def train(
    of_discriminator,
    of_generator,
    *,
    joined: bool = False,
    every: int = 1,
    of_gradients=lambda discriminator, data: 0.0,
    steps: int = 12,
    draws: bool = False,
) -> None:
    """Train both in turn.

    Args:
        of_discriminator: The loss of scores and a label, in the step of the discriminator.
        of_generator: The loss of the scores of generated samples, in that of the generator.
        joined: Whether the discriminator is called once for data and samples.
        every: Number of steps of the discriminator for each one of the generator.
        of_gradients: The discriminator's loss of its own gradients.
        steps: Number of steps.
        draws: Whether the generator draws its noise itself.
    """
    torch.manual_seed(0)
    generator, discriminator = Drawing() if draws else network(3, 2), network(2, 1)
    ours = torch.optim.Adam(generator.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    for number in range(steps):
        data = torch.randn(COUNT, 2) + 2
        samples = generator(COUNT if draws else torch.randn(COUNT, 3))
        if joined:
            scores = discriminator(torch.cat([data, samples.detach()]))
            of_data, of_samples = scores[:COUNT], scores[COUNT:]
        else:
            of_data, of_samples = discriminator(data), discriminator(samples.detach())
        theirs.zero_grad()
        loss = of_discriminator(of_data, 1.0) + of_discriminator(of_samples, 0.0)
        (loss + of_gradients(discriminator, data)).backward()
        theirs.step()
        if number % every == 0:
            ours.zero_grad()
            of_generator(discriminator(samples)).backward()
            ours.step()


def broken() -> None:
    train(cross_entropy, lambda scores: cross_entropy(scores, 0.0))


def mended() -> None:
    train(cross_entropy, lambda scores: cross_entropy(scores, 1.0))


def broken_squared_errors() -> None:
    train(squares, lambda scores: squares(scores, 0.0))


def broken_sign_of_a_critic_in_one_call() -> None:
    train(wasserstein, lambda scores: scores.mean(), joined=True, every=2)


def smooth(scores: torch.Tensor, label: float) -> torch.Tensor:
    return cross_entropy(scores, 0.55 * label)


def broken_smooth_labels() -> None:
    """The discriminator moves the scores of the data to a label, from both sides."""
    train(smooth, lambda scores: smooth(scores, 0.0), steps=30)


def healthy_smooth_labels() -> None:
    train(smooth, lambda scores: smooth(scores, 1.0), steps=30)


def broken_generator_that_is_given_a_number() -> None:
    train(cross_entropy, lambda scores: cross_entropy(scores, 0.0), draws=True)


def healthy_squared_errors() -> None:
    train(squares, lambda scores: squares(scores, 1.0))


def healthy_critic_in_one_call() -> None:
    train(wasserstein, lambda scores: -scores.mean(), joined=True, every=2)


def healthy_saturating_loss() -> None:
    """The generator raises the loss of the discriminator."""
    train(cross_entropy, lambda scores: -cross_entropy(scores, 0.0))


def healthy_hinge() -> None:
    train(hinge, lambda scores: -scores.mean())


def healthy_high_scores_of_samples() -> None:
    """The discriminator gives the samples 1, and the data 0."""
    train(lambda scores, label: cross_entropy(scores, 1 - label), lambda s: cross_entropy(s, 0.0))


def healthy_parts_in_turn() -> None:
    """An encoder and a head on its features lower the same loss, one after the other."""
    torch.manual_seed(0)
    encoder, head = network(4, 3), network(3, 1)
    ours = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(head.parameters(), lr=1e-3)
    for _ in range(12):
        first, second = torch.randn(COUNT, 4) + 1, torch.randn(COUNT, 4) - 1
        for optimizer in (theirs, ours):
            trains_head = optimizer is theirs
            features = [encoder(each) for each in (first, second)]
            features = [each.detach() if trains_head else each for each in features]
            optimizer.zero_grad()
            one, other = (head(each) for each in features)
            (cross_entropy(one, 1.0) + cross_entropy(other, 0.0)).backward()
            optimizer.step()


def healthy_actor_and_critic() -> None:
    """The critic learns the rewards of stored actions; the actor raises its values."""
    torch.manual_seed(0)
    actor, critic = network(3, 2), network(5, 1)
    ours = torch.optim.Adam(actor.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(16):
        states = torch.randn(COUNT, 3)
        with torch.no_grad():
            actions = actor(states) + 0.5 * torch.randn(COUNT, 2)
        rewards = -actions.square().sum(1, keepdim=True)
        theirs.zero_grad()
        (critic(torch.cat([states, actions], 1)) - rewards).square().mean().backward()
        theirs.step()
        ours.zero_grad()
        (-critic(torch.cat([states, actor(states)], 1)).mean()).backward()
        ours.step()


def broken_beside_a_gradient_penalty() -> None:
    train(cross_entropy, lambda scores: cross_entropy(scores, 0.0), of_gradients=penalty)


def healthy_gradient_penalty() -> None:
    train(cross_entropy, lambda scores: cross_entropy(scores, 1.0), of_gradients=penalty)
