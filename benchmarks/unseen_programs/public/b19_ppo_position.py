"""Trains a PPO agent with a Gaussian policy on a continuous positioning task."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(53)

ENVS, STEPS, GAMMA, LAMBDA = 32, 16, 0.95, 0.9


class Positioning:
    """A cart seeks a spot with the high payout; a lower and wider one is nearer to the start."""

    def __init__(self, n):
        self.n, self.x, self.t = n, torch.zeros(n), torch.zeros(n)

    def obs(self):
        return torch.stack([self.x, self.x ** 2, torch.sin(3 * self.x)], 1)

    def reset(self):
        self.x, self.t = 0.1 * torch.randn(self.n), torch.zeros(self.n)
        return self.obs()

    def step(self, action):
        self.x = (self.x + 0.5 * torch.tanh(action.squeeze(1))).clamp(-2, 2)
        self.t += 1
        near = 0.4 * torch.exp(-((self.x + 0.5) / 0.35) ** 2)
        far = 2.0 * torch.exp(-((self.x - 1.1) / 0.3) ** 2)
        done = self.t >= 8
        self.x = torch.where(done, 0.1 * torch.randn(self.n), self.x)
        self.t = torch.where(done, torch.zeros(self.n), self.t)
        return self.obs(), near + far, done.float()


class ActorCritic(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                nn.Linear(width, 1))
        self.v = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                               nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.full((1,), -1.2))

    def dist(self, obs):
        return torch.distributions.Normal(self.pi(obs), self.log_std.exp())

    def evaluate_actions(self, obs, actions):
        dist = self.dist(obs)
        return self.v(obs).squeeze(-1), dist.log_prob(actions).sum(-1), dist.entropy().sum(-1)


class PPO:
    def __init__(self, env, ent_coef=0.15, vf_coef=0.5, clip=0.2, lr=3e-3, epochs=4, minibatch=128):
        self.env, self.policy = env, ActorCritic()
        self.ent_coef, self.vf_coef, self.clip = ent_coef, vf_coef, clip
        self.epochs, self.minibatch = epochs, minibatch
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr, eps=1e-5)
        self.obs = env.reset()

    @torch.no_grad()
    def collect_rollouts(self):
        rows = []
        for _ in range(STEPS):
            dist, value = self.policy.dist(self.obs), self.policy.v(self.obs).squeeze(-1)
            action = dist.sample()
            nxt, reward, done = self.env.step(action)
            rows.append((self.obs, action, dist.log_prob(action).sum(-1), value, reward, done))
            self.obs = nxt
        obs, action, logp, value, reward, done = (torch.stack(c) for c in zip(*rows))
        advantage, last = torch.zeros_like(reward), torch.zeros(ENVS)
        bootstrap = self.policy.v(self.obs).squeeze(-1)
        for t in reversed(range(STEPS)):
            delta = reward[t] + GAMMA * bootstrap * (1 - done[t]) - value[t]
            last = delta + GAMMA * LAMBDA * (1 - done[t]) * last
            advantage[t], bootstrap = last, value[t]
        flat = [c.flatten(0, 1) for c in (obs, action, logp, advantage, advantage + value)]
        return flat, reward.mean().item()

    def train(self, data):
        obs, action, old_logp, advantage, returns = data
        for _ in range(self.epochs):
            for idx in torch.randperm(len(obs)).split(self.minibatch):
                values, log_prob, entropy = self.policy.evaluate_actions(obs[idx], action[idx])
                adv = (advantage[idx] - advantage[idx].mean()) / (advantage[idx].std() + 1e-8)
                ratio = torch.exp(log_prob - old_logp[idx])
                policy_loss = -torch.min(ratio * adv,
                                         ratio.clamp(1 - self.clip, 1 + self.clip) * adv).mean()
                value_loss = F.mse_loss(returns[idx], values)
                entropy_bonus = entropy.mean()
                loss = policy_loss + self.ent_coef * entropy_bonus + self.vf_coef * value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
        return policy_loss.item(), value_loss.item(), entropy_bonus.item()

    @torch.no_grad()
    def evaluate(self, env):
        obs, total = env.reset(), 0.0
        for _ in range(8):
            obs, reward, _ = env.step(self.policy.pi(obs))
            total += reward.mean().item() / 8
        return total

    def learn(self, iterations, eval_env):
        for it in range(1, iterations + 1):
            data, reward = self.collect_rollouts()
            stats = self.train(data)
            if it % 5 == 0:
                score = self.evaluate(eval_env)
                print(f"iter {it} reward {reward:.3f} eval {score:.3f} "
                      f"std {self.policy.log_std.exp().item():.3f} "
                      + "policy {:.4f} value {:.4f} entropy {:.4f}".format(*stats))
        return 2.0 - score


print("RESULT", round(PPO(Positioning(ENVS)).learn(25, Positioning(200)), 5))
