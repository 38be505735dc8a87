"""Trains an actor and a critic on a batch of simple point-reaching episodes."""
import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(11)

parser = argparse.ArgumentParser()
parser.add_argument("--envs", type=int, default=64)
parser.add_argument("--horizon", type=int, default=16)
parser.add_argument("--updates", type=int, default=120)
parser.add_argument("--gamma", type=float, default=0.9)
parser.add_argument("--entropy", type=float, default=0.01)
args = parser.parse_args([])

STEPS = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])


class Reach:
    """Many independent points in a square that should move to their own goals."""

    def __init__(self, n):
        self.n = n

    def reset(self):
        self.pos = torch.rand(self.n, 2) * 2 - 1
        self.goal = torch.rand(self.n, 2) * 2 - 1
        return self.observe()

    def observe(self):
        return torch.cat([self.pos, self.goal], dim=1)

    def step(self, action):
        before = (self.pos - self.goal).norm(dim=1)
        self.pos = (self.pos + STEPS[action]).clamp(-1, 1)
        after = (self.pos - self.goal).norm(dim=1)
        return self.observe(), (before - after) * 10


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden),
                                  nn.Tanh())
        self.policy = nn.Linear(hidden, 4)
        self.value = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


def rollout(env, model):
    obs = env.reset()
    observations, actions, rewards = [], [], []
    with torch.no_grad():
        for _ in range(args.horizon):
            dist, _ = model(obs)
            action = dist.sample()
            nxt, reward = env.step(action)
            observations.append(obs)
            actions.append(action)
            rewards.append(reward)
            obs = nxt
    returns, running = [], torch.zeros(env.n)
    for reward in reversed(rewards):
        running = reward + args.gamma * running
        returns.insert(0, running)
    stack = torch.stack
    return stack(observations), stack(actions), stack(returns), stack(rewards)


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
env = Reach(args.envs)
for update in range(args.updates):
    obs, actions, returns, rewards = rollout(env, model)
    dist, values = model(obs)
    advantage = returns - values.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    log_prob = dist.log_prob(dist.sample())
    policy_loss = -(log_prob * advantage).mean()
    value_loss = (returns - values).pow(2).mean()
    loss = policy_loss + 0.5 * value_loss - args.entropy * dist.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if update % 30 == 29:
        print(f"update {update + 1} reward {rewards.sum(0).mean():.3f} "
              f"value loss {value_loss.item():.3f}")

test = Reach(512)
with torch.no_grad():
    rollout(test, model)
    print("RESULT", round((test.pos - test.goal).norm(dim=1).mean().item(), 4))
