"""Clipped policy optimisation on a contextual one-step environment."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.set_num_threads(1)


class Orders:
    """State: 6 numbers. The right one of 5 actions pays 1, its neighbour a little."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.rule = torch.randn(6, 5, generator=torch.Generator().manual_seed(123))

    def reset(self, n):
        return torch.randn(n, 6, generator=self.gen)

    def reward(self, state, action):
        best = (state @ self.rule).argmax(1)
        gap = (action - best).abs()
        return (gap == 0).float() + 0.2 * (gap == 1).float()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 5))
        self.critic = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))

    def policy(self, state):
        return Categorical(logits=self.actor(state))


class Agent:
    def __init__(self, clip=0.2, epochs=4, minibatch=128):
        self.net = ActorCritic()
        self.clip, self.epochs, self.minibatch = clip, epochs, minibatch
        self.actor_opt = torch.optim.Adam(self.net.actor.parameters(), lr=3e-3)
        self.critic_opt = torch.optim.Adam(self.net.critic.parameters(), lr=3e-3)

    @torch.no_grad()
    def collect(self, env, n=512):
        state = env.reset(n)
        policy = self.net.policy(state)
        action = policy.sample()
        returns = env.reward(state, action).unsqueeze(1)
        advantage = returns - self.net.critic(state)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return state, action, policy.log_prob(action), returns, advantage

    def update(self, rollout):
        n = len(rollout[0])
        for _ in range(self.epochs):
            for idx in torch.randperm(n).split(self.minibatch):
                state, action, old_logp, returns, advantage = (t[idx] for t in rollout)
                value_loss = nn.functional.mse_loss(self.net.critic(state), returns)
                self.critic_opt.zero_grad()
                value_loss.backward()
                self.critic_opt.step()

                policy = self.net.policy(state)
                ratio = (policy.log_prob(action) - old_logp).exp()
                surr1 = ratio * advantage
                surr2 = ratio.clamp(1 - self.clip, 1 + self.clip) * advantage
                policy_loss = -torch.min(surr1, surr2).mean() - 0.002 * policy.entropy().mean()
                self.actor_opt.zero_grad()
                policy_loss.backward()
                nn.utils.clip_grad_norm_(self.net.actor.parameters(), 0.5)
                self.actor_opt.step()

    @torch.no_grad()
    def score(self, env, n=2000):
        state = env.reset(n)
        return env.reward(state, self.net.actor(state).argmax(1)).mean().item()


def main():
    torch.manual_seed(10)
    env, test_env = Orders(1), Orders(2)
    agent = Agent()
    for it in range(40):
        rollout = agent.collect(env)
        agent.update(rollout)
        if it % 8 == 7:
            print(f"iteration {it + 1} reward {rollout[3].mean().item():.3f} greedy {agent.score(test_env):.3f}")
    print("RESULT", 1 - agent.score(test_env))


if __name__ == "__main__":
    main()
