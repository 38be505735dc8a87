"""The target of a Q network is computed by the network itself, with gradients."""

import copy

import torch
from torch import nn
from torch.nn import functional

CODE = "BOOTSTRAP_NOT_DETACHED"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def transitions(count: int = 4):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        states, following = torch.randn(2, 8, 4, generator=generator)
        actions = torch.randint(3, (8, 1), generator=generator)
        rewards = torch.rand(8, generator=generator)
        done = torch.tensor([0.0] * 6 + [1.0] * 2)
        yield states, actions, rewards, following, done


def train(target_of, difference=functional.mse_loss) -> None:
    """Train a Q network; `target_of` gets the network, its copy, and a transition."""
    model = network()
    fixed = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for states, actions, rewards, following, done in transitions():
        values = model(states).gather(1, actions).squeeze(1)
        optimizer.zero_grad()
        difference(values, target_of(model, fixed, rewards, following, done)).backward()
        optimizer.step()


def own(model, fixed, rewards, following, done):
    return rewards + 0.99 * (1 - done) * model(following).max(1).values


def detached(model, fixed, rewards, following, done):
    target = rewards + 0.99 * (1 - done) * model(following).max(1).values
    return target.detach()


def broken() -> None:
    train(own)


def chosen(model, fixed, rewards, following, done):
    """Choose the reward alone at the last state of an episode."""
    values = model(following).max(1).values
    return torch.where(done > 0, rewards, rewards + 0.99 * values)


def broken_target_that_is_chosen_by_the_end_of_an_episode() -> None:
    train(chosen)


def healthy_choice_of_values_of_a_copy() -> None:
    train(lambda model, fixed, *others: chosen(fixed, fixed, *others))


def broken_values_that_are_masked() -> None:
    def target_of(model, fixed, rewards, following, done):
        return rewards + (0.99 * model(following).max(1).values).masked_fill(done > 0, 0.0)

    train(target_of)


def mended() -> None:
    train(detached)


def broken_difference_that_is_squared() -> None:
    train(own, lambda values, target: (target - values).pow(2).mean())


def broken_value_of_a_critic() -> None:
    torch.manual_seed(0)
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
    for states, _, rewards, following, done in transitions():
        target = rewards[:, None] + critic(following) * 0.9 * (1 - done)[:, None]
        optimizer.zero_grad()
        functional.smooth_l1_loss(critic(states), target).backward()
        optimizer.step()


def healthy_copy_that_no_optimizer_trains() -> None:
    """Its gradients are computed in vain, and change nothing."""

    def target_of(model, fixed, rewards, following, done):
        return rewards + 0.99 * (1 - done) * fixed(following).max(1).values

    train(target_of)


def healthy_target_without_gradients() -> None:
    def target_of(model, fixed, rewards, following, done):
        with torch.no_grad():
            return rewards + 0.99 * model(following).max(1).values

    train(target_of)


def healthy_returns_of_the_values_of_the_loop() -> None:
    """The values with gradients are used again without them."""
    torch.manual_seed(0)
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
    for states, _, rewards, _, _ in transitions():
        values = critic(states).squeeze(1)
        with torch.no_grad():
            returns = rewards + 0.99 * values.roll(-1)
        optimizer.zero_grad()
        functional.mse_loss(values, returns).backward()
        optimizer.step()


def healthy_two_views_that_agree() -> None:
    """Both sides of a consistency are trained."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for states, _, _, following, _ in transitions():
        optimizer.zero_grad()
        functional.mse_loss(model(states), 0.9 * model(following)).backward()
        optimizer.step()


def healthy_step_of_a_dynamics() -> None:
    """A network predicts the change of a state; two of its steps are compared."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for states, _, _, following, _ in transitions():
        ahead = states + 0.5 * model(states)
        optimizer.zero_grad()
        functional.mse_loss(following + 0.5 * model(following), ahead).backward()
        optimizer.step()


def chain(*successors: list[int], steps: int = 200) -> None:
    """Minimise the squared residuals of a table of values; the successors are taken in turns."""
    table = nn.Embedding(4, 1)
    nn.init.zeros_(table.weight)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.8)
    states = torch.arange(4)
    rewards = states / 4 - 0.5
    for step in range(steps):
        following = torch.tensor(successors[step % len(successors)])
        residual = rewards + 0.5 * table(following).squeeze(1) - table(states).squeeze(1)
        optimizer.zero_grad()
        residual.pow(2).mean().backward()
        optimizer.step()


def healthy_chain_without_chance() -> None:
    """Each state has one successor: the residuals vanish, and the values are right."""
    chain([1, 2, 3, 0])


def broken_chain_with_chance() -> None:
    chain([1, 2, 3, 0], [3, 0, 1, 2])


def broken_returns_that_are_stacked() -> None:
    torch.manual_seed(0)
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    for states, _, _, following, _ in transitions(20):
        rewards = torch.rand(3, 8)
        path = torch.stack([states, following, states.flip(0), following.flip(0)])
        values = critic(path).squeeze(-1)
        last, returns = values[-1], []
        for place in reversed(range(3)):
            last = rewards[place] + 0.9 * (0.5 * values[place + 1] + 0.5 * last)
            returns.insert(0, last)
        optimizer.zero_grad()
        (torch.stack(returns) - values[:-1]).pow(2).mean().backward()
        optimizer.step()


def healthy_returns_of_fixed_values() -> None:
    torch.manual_seed(0)
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    for states, _, rewards, following, _ in transitions(20):
        values = critic(torch.stack([states, following])).squeeze(-1)
        returns = [rewards + 0.9 * values[1].detach(), values[1].detach()]
        optimizer.zero_grad()
        (torch.stack(returns) - values).pow(2).mean().backward()
        optimizer.step()


def broken_beside_a_loss_that_falls_below_zero() -> None:
    """The loss of an actor falls below 0; the residuals of the critic stay."""
    torch.manual_seed(0)
    critic, actor = nn.Linear(4, 1), nn.Linear(4, 1)
    ours = torch.optim.SGD(critic.parameters(), lr=0.01)
    others = torch.optim.SGD(actor.parameters(), lr=0.5)
    for states, _, rewards, following, _ in transitions(20):
        others.zero_grad()
        (actor(states).tanh().mean() + 0.5).backward()
        others.step()
        target = rewards[:, None] + 0.9 * critic(following)
        ours.zero_grad()
        functional.mse_loss(critic(states), target).backward()
        ours.step()


def differentiate(target_of) -> None:
    """Take the gradients from torch.func, for parameters outside of the network."""
    model = network()
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    old = dict(weights)

    def fixed(states: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, old, (states,))

    def loss_of(weights, states, actions, rewards, following, done):
        def online(states: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, weights, (states,))

        values = online(states).gather(1, actions).squeeze(1)
        return functional.mse_loss(values, target_of(online, fixed, rewards, following, done))

    for batch in transitions():
        slopes = torch.func.grad(loss_of)(weights, *batch)
        weights = {name: each - 0.05 * slopes[name] for name, each in weights.items()}


def broken_in_torch_func() -> None:
    differentiate(own)


def healthy_in_torch_func() -> None:
    differentiate(detached)


def healthy_old_parameters_in_torch_func() -> None:
    differentiate(lambda online, fixed, *transition: own(fixed, fixed, *transition))
