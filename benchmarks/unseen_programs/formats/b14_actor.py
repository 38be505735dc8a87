import torch
from torch import nn

torch.manual_seed(55)
torch.set_num_threads(1)

STATE, ACTION = 4, 2


def mlp(n_in, n_out, width=64):
    return nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_out))


class Dosing:
    """One decision per patient: the best dose depends on the patient's state."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.w = torch.randn(STATE, ACTION, generator=self.gen)

    def patients(self, n):
        return torch.randn(n, STATE, generator=self.gen)

    def best(self, s):
        return torch.tanh(s @ self.w * 0.7)

    def reward(self, s, a):
        return -(a - self.best(s)).square().sum(1) * 2 + 0.1 * torch.randn(len(s), generator=self.gen)


class Memory:
    def __init__(self):
        self.rows = []

    def add(self, s, a, r):
        self.rows.append((s, a, r))

    def sample(self, n):
        s, a, r = (torch.cat(c) for c in zip(*self.rows[-60:]))
        idx = torch.randint(0, len(s), (n,))
        return s[idx], a[idx], r[idx]


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(mlp(STATE, ACTION), nn.Tanh())
        self.critic = mlp(STATE + ACTION, 1)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3)

    def value(self, s, a):
        return self.critic(torch.cat([s, a], dim=1))[:, 0]

    def learn(self, s, a, r):
        critic_loss = (self.value(s, a) - r).square().mean()
        critic_loss.backward()
        self.critic_opt.step()
        self.critic_opt.zero_grad()

        actor_loss = -self.value(s, self.actor(s)).mean()
        actor_loss.backward()
        self.actor_opt.step()
        self.actor_opt.zero_grad()
        return critic_loss.item(), actor_loss.item()


def main():
    env, memory, agent = Dosing(3), Memory(), Agent()
    for step in range(1, 1001):
        s = env.patients(32)
        with torch.no_grad():
            a = (agent.actor(s) + 0.4 * torch.randn(32, ACTION)).clamp(-1, 1)
        memory.add(s, a, env.reward(s, a))
        losses = agent.learn(*memory.sample(64))
        if step % 100 == 0:
            print(step, "critic %.3f actor %.3f" % losses)
    s = env.patients(2000)
    with torch.no_grad():
        print("RESULT", (agent.actor(s) - env.best(s)).square().mean().item())


main()
