import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.set_num_threads(1)
torch.manual_seed(14)

OBS, ACT, HORIZON, N_ENV = 4, 2, 20, 16
GAMMA, TAU, BATCH = 0.95, 0.02, 128


class PointMasses:
    """N_ENV little carts that have to be pushed to the origin."""

    def reset(self):
        self.x = torch.rand(N_ENV, 2) * 2 - 1
        self.v = torch.zeros(N_ENV, 2)
        return torch.cat([self.x, self.v], 1)

    def step(self, a):
        self.v = 0.6 * self.v + 0.25 * a
        self.x = (self.x + self.v).clamp(-2, 2)
        reward = -self.x.pow(2).sum(1) - 0.01 * a.pow(2).sum(1)
        return torch.cat([self.x, self.v], 1), reward


def net(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(OBS, 2 * ACT)

    def forward(self, s):
        mu, log_std = self.body(s).chunk(2, -1)
        dist = Normal(mu, log_std.clamp(-5, 2).exp())
        u = dist.rsample()
        a = torch.tanh(u)
        logp = dist.log_prob(u).sum(-1) - torch.log(1 - a.pow(2) + 1e-6).sum(-1)
        return a, logp, torch.tanh(mu)


class SAC:
    def __init__(self):
        self.actor = Actor()
        self.critics = nn.ModuleList([net(OBS + ACT, 1), net(OBS + ACT, 1)])
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(ACT)
        self.opt_a = torch.optim.Adam(self.actor.parameters(), lr=2e-3)
        self.opt_c = torch.optim.Adam(self.critics.parameters(), lr=2e-3)
        self.opt_t = torch.optim.Adam([self.log_alpha], lr=1e-2)

    @staticmethod
    def q(critics, s, a):
        sa = torch.cat([s, a], -1)
        return [c(sa).squeeze(-1) for c in critics]

    def update(self, s, a, r, s2):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2, _ = self.actor(s2)
            backup = r + GAMMA * (torch.min(*self.q(self.target, s2, a2)) - alpha * logp2)
        critic_loss = sum(F.mse_loss(q, backup) for q in self.q(self.critics, s, a))
        self.opt_c.zero_grad()
        critic_loss.backward()
        self.opt_c.step()
        self.critics.requires_grad_(False)
        pi, logp, _ = self.actor(s)
        actor_loss = (alpha * logp - torch.min(*self.q(self.critics, s, pi))).mean()
        self.opt_a.zero_grad()
        actor_loss.backward()
        self.opt_a.step()
        self.critics.requires_grad_(True)
        temp_loss = (self.log_alpha * (logp + self.target_entropy).detach()).mean()
        self.opt_t.zero_grad()
        temp_loss.backward()
        self.opt_t.step()
        with torch.no_grad():
            for p, t in zip(self.critics.parameters(), self.target.parameters()):
                t.lerp_(p, TAU)
        return critic_loss.item(), alpha.item()


@torch.no_grad()
def evaluate(agent):
    env, total = PointMasses(), 0.0
    for _ in range(4):
        s = env.reset()
        for _ in range(HORIZON):
            s, r = env.step(agent.actor(s)[2])
            total += r.mean().item()
    return total / (4 * HORIZON)


def main():
    env, agent, memory = PointMasses(), SAC(), []
    for episode in range(60):
        s = env.reset()
        for _ in range(HORIZON):
            with torch.no_grad():
                a = agent.actor(s)[0] if episode >= 3 else torch.rand(N_ENV, ACT) * 2 - 1
            s2, r = env.step(a)
            memory.append((s, a, r, s2))
            s = s2
            if episode >= 3:
                picks = [memory[i] for i in torch.randint(0, len(memory), (BATCH // N_ENV,)).tolist()]
                info = agent.update(*(torch.cat(t) for t in zip(*picks)))
        if episode % 10 == 9:
            print(f"episode {episode} critic {info[0]:.3f} alpha {info[1]:.4f} eval {evaluate(agent):.3f}")
    print("RESULT", -evaluate(agent))


if __name__ == "__main__":
    main()
