"""Advantage actor-critic in a corridor: negative losses and targets without gradient are meant so."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(9)

LENGTH, HORIZON, ENVS, GAMMA = 7, 12, 32, 0.95


class Corridor:
    """Reward at the right end, a small lure at the left end."""

    def reset(self):
        self.pos = torch.full((ENVS,), LENGTH // 2)
        return self.observe()

    def observe(self):
        return nn.functional.one_hot(self.pos, LENGTH).float()

    def step(self, action):
        slip = torch.rand(ENVS) < 0.1
        move = torch.where(slip, 1 - action, action) * 2 - 1
        self.pos = (self.pos + move).clamp(0, LENGTH - 1)
        reward = (self.pos == LENGTH - 1).float() + 0.1 * (self.pos == 0).float()
        return self.observe(), reward


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(obs)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


env, agent = Corridor(), Agent()
opt = torch.optim.Adam(agent.parameters(), lr=8e-3)
returns = []
for episode in range(60):
    obs = env.reset()
    logp, values, rewards, entropy = [], [], [], []
    for t in range(HORIZON):
        policy, value = agent(obs)
        action = policy.sample()
        obs, r = env.step(action)
        logp.append(policy.log_prob(action))
        values.append(value)
        rewards.append(r)
        entropy.append(policy.entropy())
    g, target = torch.zeros(ENVS), []
    for r in reversed(rewards):
        g = r + GAMMA * g
        target.insert(0, g)
    target, values = torch.stack(target), torch.stack(values)
    advantage = (target - values).detach()
    loss = -(torch.stack(logp) * advantage).mean() + 0.5 * (target - values).pow(2).mean() \
        - 0.02 * torch.stack(entropy).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
    opt.step()
    returns.append(torch.stack(rewards).sum(0).mean().item())
    if episode % 15 == 0:
        print(episode, "return", returns[-1], "loss", loss.item())
print("RESULT", HORIZON - sum(returns[-5:]) / 5)
