"""Learn taxi surcharges from simulated rides with an actor and a critic of the revenue."""
import torch
torch.set_num_threads(1)
torch.manual_seed(240)
from torch import nn

CONTEXT = 5
W = torch.randn(CONTEXT, generator=torch.Generator().manual_seed(8))


def best_surcharge(s):
    return 0.6 * torch.tanh(s @ W / 2)[:, None]


def ride(s, a):
    """Revenue of a surcharge a in the situation s, with noise."""
    base = 1 - 2.5 * (a - best_surcharge(s)) ** 2
    return base + 0.1 * torch.randn_like(a)


def mlp(n_in, n_out, *last):
    return nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, n_out), *last)


class Replay:
    def __init__(self, size):
        self.s = torch.zeros(size, CONTEXT)
        self.a = torch.zeros(size, 1)
        self.r = torch.zeros(size, 1)
        self.size, self.n = size, 0

    def add(self, s, a, r):
        at = (torch.arange(len(s)) + self.n) % self.size
        self.s[at], self.a[at], self.r[at] = s, a, r
        self.n += len(s)

    def draw(self, k):
        rows = torch.randint(min(self.n, self.size), (k,))
        return self.s[rows], self.a[rows], self.r[rows]


class Agent:
    def __init__(self):
        self.actor = mlp(CONTEXT, 1, nn.Tanh())
        self.critic = mlp(CONTEXT + 1, 1)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3)

    def value(self, s, a):
        return self.critic(torch.cat([s, a], 1))

    def act(self, s, noise=0.25):
        with torch.no_grad():
            a = self.actor(s)
        return (a + noise * torch.randn_like(a)).clamp(-1, 1)

    def learn(self, s, a, r):
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()

        actor_loss = -self.value(s, self.actor(s)).mean()
        actor_loss.backward()
        self.actor_opt.step()

        critic_loss = nn.functional.mse_loss(self.value(s, a), r)
        critic_loss.backward()
        self.critic_opt.step()
        return actor_loss.item(), critic_loss.item()


agent, replay = Agent(), Replay(4000)
check = torch.randn(1000, CONTEXT, generator=torch.Generator().manual_seed(3))


def regret():
    with torch.no_grad():
        return (2.5 * (agent.actor(check) - best_surcharge(check)) ** 2).mean().item()


for step in range(400):
    s = torch.randn(64, CONTEXT)
    a = agent.act(s, noise=1.0 if step < 20 else 0.25)
    replay.add(s, a, ride(s, a))
    actor_loss, critic_loss = agent.learn(*replay.draw(128))
    if step % 80 == 0:
        print(f"step {step} actor {actor_loss:.3f} critic {critic_loss:.3f} "
              f"regret {regret():.4f}")

print("RESULT", regret())
