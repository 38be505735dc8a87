"""A variational autoencoder draws its latent vectors with `sample()`."""

import torch
from torch import distributions, nn
from torch.nn import functional

from doctor.loops import batches

CODE = "DRAW_WITHOUT_GRADIENT"


class Autoencoder(nn.Module):
    """An encoder to a normal distribution, and a decoder.

    Args:
        draw: Draws the decoder's input from the mean and the standard deviation.
    """

    def __init__(self, draw) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)
        self.draw = draw

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(images).chunk(2, 1)
        return mean, functional.softplus(spread) + 0.1

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = self.encode(images)
        divergence = distributions.kl_divergence(
            distributions.Normal(mean, std), distributions.Normal(0.0, 1.0)
        )
        return self.decoder(self.draw(mean, std)), divergence.mean()


def train(draw, *, weight: float = 0.1, count: int = 8) -> None:
    model = Autoencoder(draw)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, _ in batches(count):
        optimizer.zero_grad()
        outputs, divergence = model(images)
        loss = functional.mse_loss(outputs, images)
        if weight:
            loss = loss + weight * divergence
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(lambda mean, std: distributions.Normal(mean, std).sample())


def mended() -> None:
    train(lambda mean, std: distributions.Normal(mean, std).rsample())


def broken_without_a_divergence() -> None:
    train(lambda mean, std: distributions.Normal(mean, std).sample(), weight=0)


def broken_in_an_independent_distribution() -> None:
    train(lambda m, s: distributions.Independent(distributions.Normal(m, s), 1).sample((1,))[0])


def broken_in_a_function_of_torch() -> None:
    def draw(mean, std):
        return torch.normal(mean, std)

    train(draw)


def in_the_loop(draw) -> None:
    """The loop itself draws, and the sample goes through a reshape to a second model."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)
    for images, labels in batches(6):
        latent = distributions.Normal(encoder(images), 1.0)
        divergence = distributions.kl_divergence(latent, distributions.Normal(0.0, 1.0)).mean()
        code = draw(latent).reshape(8, 4)
        optimizer.zero_grad()
        (functional.cross_entropy(decoder(code), labels) + 0.01 * divergence).backward()
        optimizer.step()


def broken_in_the_loop() -> None:
    in_the_loop(lambda latent: latent.sample())


def broken_in_the_loop_without_a_divergence() -> None:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)
    for images, labels in batches(6):
        code = distributions.Normal(encoder(images), 1.0).sample()
        optimizer.zero_grad()
        functional.cross_entropy(decoder(code), labels).backward()
        optimizer.step()


def healthy_in_the_loop() -> None:
    in_the_loop(lambda latent: latent.rsample())


def healthy_noise_around_the_mean() -> None:
    train(lambda mean, std: mean + std * torch.randn_like(mean))


def healthy_noise_of_a_distribution_without_parameters() -> None:
    train(lambda mean, std: mean + std * distributions.Normal(0.0, 1.0).sample(mean.shape))


def reinforce(score) -> None:
    """A policy gradient, whose critic gets the drawn action."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(6, 2), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.01)
    for states, _ in batches(8):
        policy = distributions.Normal(actor(states), 0.5)
        actions = policy.sample()
        reward = -(actions - states[:, :2]).square().sum(1, keepdim=True)
        value = critic(torch.cat([states, actions], 1))
        optimizer.zero_grad()
        loss = functional.mse_loss(value, reward)
        (loss - (score(policy, actions) * reward).mean()).backward()
        optimizer.step()


def healthy_policy_gradient() -> None:
    reinforce(lambda policy, actions: policy.log_prob(actions).sum(1, keepdim=True))


def healthy_policy_gradient_of_a_function_of_torch() -> None:
    torch.manual_seed(0)
    actor = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.01)
    for states, _ in batches(8):
        means = actor(states)
        actions = torch.normal(means, 0.5)
        score = -(actions - means).square().sum(1) / 0.5
        reward = -(actions.detach() - states[:, :2]).square().sum(1)
        optimizer.zero_grad()
        (-(score * reward).mean()).backward()
        optimizer.step()


def healthy_policy_gradient_by_hand() -> None:
    def score(policy, actions):
        return -((actions - policy.loc) / 0.5).square().sum(1, keepdim=True) / 2

    reinforce(score)


def healthy_critic_of_drawn_actions() -> None:
    """The critic's loss needs samples of the policy, which another loss trains."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(6, 2), nn.Linear(8, 1)
    of_actor = torch.optim.SGD(actor.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for states, _ in batches(8):
        actions = distributions.Normal(actor(states), 0.5).sample()
        value = critic(torch.cat([states, actions], 1))
        of_critic.zero_grad()
        functional.mse_loss(value, -actions.square().sum(1, keepdim=True)).backward()
        of_critic.step()
        of_actor.zero_grad()
        (-critic(torch.cat([states, actor(states)], 1)).mean()).backward()
        of_actor.step()


def healthy_likelihood_with_samples_as_next_inputs() -> None:
    """A forecast is trained by a likelihood, and its samples are the inputs of the next step."""
    torch.manual_seed(0)
    model = nn.GRUCell(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, _ in batches(6):
        state, value, loss = torch.zeros(8, 6), images, 0.0
        for _ in range(3):
            state = model(value, state)
            forecast = distributions.Normal(state, 1.0)
            loss = loss - forecast.log_prob(images).mean()
            value = forecast.sample()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_samples_of_classes() -> None:
    train(
        lambda mean, std: (
            mean + std * functional.one_hot(distributions.Categorical(logits=mean).sample(), 4)
        )
    )


def healthy_samples_that_are_only_printed() -> None:
    def draw(mean, std):
        distributions.Normal(mean, std).sample().mean().item()
        return mean

    train(draw)


def healthy_samples_as_targets() -> None:
    """A second model learns what the first one may predict; both learn from the labels."""
    torch.manual_seed(0)
    first, second = nn.Linear(6, 3), nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    for images, labels in batches(6):
        scores, others = first(images), second(images)
        guesses = distributions.Normal(scores, 0.1).sample()
        optimizer.zero_grad()
        loss = functional.cross_entropy(scores, labels) + functional.mse_loss(others, guesses)
        loss.backward()
        optimizer.step()


def healthy_prior_of_codes() -> None:
    """A prior learns the codes of an encoder, which learns by other samples."""
    torch.manual_seed(0)
    encoder, decoder, prior = nn.Linear(6, 8), nn.Linear(4, 6), nn.Linear(1, 4)
    modules = nn.ModuleList([encoder, decoder, prior])
    optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)
    for images, _ in batches(6):
        mean, spread = encoder(images).chunk(2, 1)
        codes = distributions.Normal(mean, functional.softplus(spread))
        expected = prior(torch.ones(8, 1))
        optimizer.zero_grad()
        loss = functional.mse_loss(decoder(codes.rsample()), images)
        loss = loss + distributions.kl_divergence(codes, distributions.Normal(0.0, 1.0)).mean()
        (loss + (expected - codes.sample()).square().mean()).backward()
        optimizer.step()


def broken_with_a_likelihood_of_the_outputs() -> None:
    """The outputs have a log-probability, and the latent vectors have none."""

    class Likelihood(Autoencoder):
        def forward(self, images):
            mean, std = self.encode(images)
            latent = distributions.Normal(mean, std)
            outputs = distributions.Normal(self.decoder(latent.sample()), 1.0)
            prior = distributions.Normal(torch.zeros(4), 1.0)
            divergence = distributions.kl_divergence(latent, prior).sum(1).mean()
            return divergence - outputs.log_prob(images).sum(1).mean()

    model = Likelihood(None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for images, _ in batches(6):
        optimizer.zero_grad()
        model(images).backward()
        optimizer.step()


def healthy_policy_gradient_inside_a_model() -> None:
    """The model itself draws the action, judges it, and computes its log-probability."""

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.actor, self.critic = nn.Linear(6, 2), nn.Linear(8, 1)

        def forward(self, states):
            policy = distributions.Normal(self.actor(states), 0.5)
            actions = policy.sample()
            values = self.critic(torch.cat([states, actions], 1))
            return actions, values, policy.log_prob(actions).sum(1, keepdim=True)

    model = ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for states, _ in batches(6):
        actions, values, score = model(states)
        reward = torch.from_numpy(-(actions.numpy() ** 2).sum(1, keepdims=True))
        optimizer.zero_grad()
        (functional.mse_loss(values, reward) - (score * reward).mean()).backward()
        optimizer.step()


def broken_beside_a_prior_of_the_same_shape() -> None:
    def draw(mean, std):
        sample = distributions.Normal(mean, std).sample()
        prior = distributions.Normal(torch.zeros_like(sample), torch.ones_like(sample))
        distributions.kl_divergence(distributions.Normal(mean, std), prior)
        return sample

    train(draw)
