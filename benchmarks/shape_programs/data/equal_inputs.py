import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(1)
GAMMA = 0.9


class Corridor:
    """A walker in [0, 1]; walking on to the end pays one."""

    def __init__(self, rng):
        self.rng = rng
        self.state = np.zeros(2, np.float32)

    def reset(self):
        self.state[:] = self.rng.uniform(0, 1), self.rng.uniform(-1, 1)
        return self.state

    def step(self):
        self.state[0] += 0.12 + 0.02 * self.rng.normal()
        self.state[1] = self.rng.uniform(-1, 1)
        done = bool(self.state[0] >= 1)
        return self.state, float(done), done


class Memory:
    def __init__(self):
        self.rows = []

    def add(self, before, reward, after, done):
        row = (*before, reward, *after, float(done))
        self.rows.append(torch.tensor(row, dtype=torch.float32))

    def sample(self, n):
        rows = torch.stack(self.rows)[torch.randint(len(self.rows), (n,))]
        return rows[:, :2], rows[:, 2], rows[:, 3:5], rows[:, 5]


world, memory = Corridor(np.random.default_rng(1)), Memory()
for episode in range(150):
    observation, done = world.reset(), False
    while not done:
        following, reward, done = world.step()
        memory.add(observation, reward, following, done)
        observation = following


def critic():
    return nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 1), nn.Flatten(0))


value, target = critic(), critic()
target.load_state_dict(value.state_dict())
optimizer = torch.optim.Adam(value.parameters(), lr=5e-3)
for step in range(150):
    before, reward, after, done = memory.sample(64)
    with torch.no_grad():
        goal = reward + GAMMA * (1 - done) * target(after)
    loss = nn.functional.smooth_l1_loss(value(before), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), value.parameters()):
            slow.lerp_(fast, 0.1)

place = torch.linspace(0.05, 0.95, 60)
steps_left = torch.ceil((1 - place) / 0.12)
with torch.no_grad():
    guess = value(torch.stack([place, torch.zeros(60)], 1))
print("RESULT", (guess - GAMMA ** (steps_left - 1)).abs().mean().item())
