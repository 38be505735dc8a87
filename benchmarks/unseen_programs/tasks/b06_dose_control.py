"""Learns a dosing policy with an actor and a critic from a buffer of logged doses."""
import copy

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)

STATE, BATCH, STEPS = 6, 128, 400


def response(state, dose):
    """Benefit of a dose; the best dose depends on the patient."""
    best = torch.tanh(state[:, :1] - 0.7 * state[:, 1:2])
    return 0.5 - 0.5 * (dose - best) ** 2 + 0.3 * state[:, 2:3]


class Buffer:
    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.state = torch.randn(n, STATE, generator=self.g)
        self.dose = torch.rand(n, 1, generator=self.g) * 2 - 1
        noise = 0.1 * torch.randn(n, 1, generator=self.g)
        self.reward = response(self.state, self.dose) + noise

    def sample(self, size):
        i = torch.randint(0, len(self.state), (size,), generator=self.g)
        return self.state[i], self.dose[i], self.reward[i]


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())

    def forward(self, s):
        return self.net(s)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE + 1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, s, a):
        return self.net(torch.cat([s, a], dim=-1))


class Agent:
    def __init__(self):
        self.actor, self.critic = Actor(), Critic()
        self.slow = copy.deepcopy(self.actor)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3)

    def update(self, state, dose, reward):
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()

        actor_loss = -self.critic(state, self.actor(state)).mean()
        actor_loss.backward()
        self.actor_opt.step()

        critic_loss = nn.functional.mse_loss(self.critic(state, dose), reward)
        critic_loss.backward()
        self.critic_opt.step()

        with torch.no_grad():
            for a, b in zip(self.slow.parameters(), self.actor.parameters()):
                a.lerp_(b, 0.05)
        return actor_loss.item(), critic_loss.item()

    @torch.no_grad()
    def regret(self, state):
        ideal = torch.tanh(state[:, :1] - 0.7 * state[:, 1:2])
        return (response(state, ideal) - response(state, self.slow(state))).mean().item()


agent = Agent()
buffer = Buffer(4000, seed=12)
val_state = torch.randn(800, STATE, generator=torch.Generator().manual_seed(77))
for step in range(STEPS):
    a_loss, c_loss = agent.update(*buffer.sample(BATCH))
    if step % 80 == 79:
        print(f"step {step + 1} actor {a_loss:.3f} critic {c_loss:.4f} "
              f"regret {agent.regret(val_state):.4f}")
print("RESULT", agent.regret(val_state))
