"""The loss of an actor and its critic adds the entropy of the policy, and does not subtract it."""

import torch
from torch import nn
from torch.nn import functional

CODE = "ENTROPY_MADE_SMALLER"


class Actor(nn.Module):
    """A policy of three actions, and a value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.head, self.value = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(states))
        return self.head(hidden), self.value(hidden)[:, 0]


def of_torch(scores: torch.Tensor, actions: torch.Tensor):
    policy = torch.distributions.Categorical(logits=scores)
    return policy.log_prob(actions), policy.entropy()


def by_hand(scores: torch.Tensor, actions: torch.Tensor):
    logs = scores.log_softmax(-1)
    return logs.gather(1, actions[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def train(model: nn.Module, of=of_torch, weight: float = 0.02) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(16):
        states = torch.randn(32, 4, generator=generator)
        scores, values = model(states)
        actions = torch.multinomial(scores.detach().softmax(-1), 1, generator=generator)[:, 0]
        returns = (actions == states[:, :3].argmax(1)).float()
        logs, entropies = of(scores, actions)
        loss = -(logs * (returns - values.detach())).mean() + weight * entropies.mean()
        optimizer.zero_grad()
        (loss + functional.mse_loss(values, returns)).backward()
        optimizer.step()


def broken() -> None:
    train(Actor())


def mended() -> None:
    train(Actor(), weight=-0.02)


def broken_by_hand() -> None:
    train(Actor(), by_hand)


def healthy_by_hand() -> None:
    train(Actor(), by_hand, -0.02)


class Gaussian(nn.Module):
    """A policy with a learned deviation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.size = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))


def train_gaussian(weight: float) -> None:
    """Train with ratios to the policy that acted, which are clipped."""
    model = Gaussian()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(16):
        states = torch.randn(32, 4)
        with torch.no_grad():
            old = torch.distributions.Normal(model.mean(states), model.size.exp())
            actions = old.sample()
            before = old.log_prob(actions).sum(-1)
            gains = -(actions - states[:, :2]).square().sum(-1)
            gains = (gains - gains.mean()) / gains.std()
        policy = torch.distributions.Normal(model.mean(states), model.size.exp())
        ratios = (policy.log_prob(actions).sum(-1) - before).exp()
        loss = -torch.min(ratios * gains, ratios.clamp(0.8, 1.2) * gains).mean()
        optimizer.zero_grad()
        (loss + weight * policy.entropy().sum(-1).mean()).backward()
        optimizer.step()


def broken_gaussian() -> None:
    train_gaussian(0.1)


def healthy_gaussian() -> None:
    train_gaussian(-0.1)


def healthy_gain_that_is_maximised() -> None:
    model = Actor()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, maximize=True)
    for _ in range(16):
        states = torch.randn(32, 4)
        scores, _ = model(states)
        actions = torch.multinomial(scores.detach().softmax(-1), 1)[:, 0]
        returns = (actions == states[:, :3].argmax(1)).float()
        logs, entropies = of_torch(scores, actions)
        optimizer.zero_grad()
        ((logs * (returns - 0.3)).mean() + 0.02 * entropies.mean()).backward()
        optimizer.step()


def healthy_entropy_of_unlabelled_samples() -> None:
    """A classifier is meant to be certain of the samples that have no labels."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(16):
        labelled, others = torch.randn(2, 32, 4)
        logs = model(others).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1).mean()
        loss = functional.cross_entropy(model(labelled), labelled[:, :3].argmax(1))
        optimizer.zero_grad()
        (loss + 0.1 * entropy).backward()
        optimizer.step()


def healthy_certain_gate() -> None:
    """A gate that shares the policy's trunk is meant to choose."""
    model, gate = Actor(), nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *gate.parameters()], lr=0.01)
    for _ in range(16):
        states = torch.randn(32, 4)
        scores, values = model(states)
        actions = torch.multinomial(scores.detach().softmax(-1), 1)[:, 0]
        returns = (actions == states[:, :3].argmax(1)).float()
        logs, _ = of_torch(scores, actions)
        gates = gate(torch.tanh(model.trunk(states))).log_softmax(-1)
        mixed = gates.exp()[:, 0] * values
        loss = -(logs * (returns - values.detach())).mean() - (gates.exp() * gates).sum(-1).mean()
        optimizer.zero_grad()
        (loss + functional.mse_loss(mixed, returns)).backward()
        optimizer.step()
