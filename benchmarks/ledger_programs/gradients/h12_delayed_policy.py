"""Delayed deterministic policy updates on a one-step control problem."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
torch.set_num_threads(1)


def reward(s, a):
    best = torch.tanh(torch.stack([s[:, 0] - s[:, 1], s[:, 2] * s[:, 3]], 1))
    return -((a - best) ** 2).sum(1, keepdim=True)


def net(i, o, last=None):
    m = [nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o)]
    return nn.Sequential(*m, last) if last else nn.Sequential(*m)


class Agent:
    def __init__(self):
        self.actor = net(4, 2, nn.Tanh())
        self.q1, self.q2 = net(6, 1), net(6, 1)
        self.actor_target = copy.deepcopy(self.actor)
        self.actor_optim = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_optim = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=2e-3)

    def update(self, it):
        s = torch.randn(64, 4)
        with torch.no_grad():
            a = (self.actor_target(s) + 0.4 * torch.randn(64, 2)).clamp(-1, 1)
        r = reward(s, a) + 0.05 * torch.randn(64, 1)
        sa = torch.cat([s, a], 1)
        critic_loss = F.mse_loss(self.q1(sa), r) + F.mse_loss(self.q2(sa), r)
        self.critic_optim.zero_grad()
        critic_loss.backward()
        self.critic_optim.step()
        if it % 2 == 0:
            actor_loss = -self.q1(torch.cat([s, self.actor(s)], 1)).mean()
            self.actor_optim.zero_grad()
            actor_loss.backward()
            self.actor_optim.step()
            with torch.no_grad():
                for p, q in zip(self.actor.parameters(), self.actor_target.parameters()):
                    q.lerp_(p, 0.05)
        return critic_loss.item()


agent = Agent()
for it in range(500):
    c = agent.update(it)
    if it % 100 == 0:
        print(it, round(c, 4))
with torch.no_grad():
    s = torch.randn(1000, 4)
    print(f"result: {-reward(s, agent.actor(s)).mean().item():.4f}")
