"""Trains a Q network on a corridor task with time limits from a compact replay buffer."""
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)
rng = np.random.default_rng(4)

CELLS, ACTIONS, GAMMA, LIMIT = 15, 3, 0.9, 5


class Corridor:
    """Walk along a corridor; rewards lie at the right end, every episode ends by a time limit."""

    def reset(self):
        self.pos, self.clock = int(rng.integers(CELLS)), 0
        return self.obs()

    def obs(self):
        x = self.pos / (CELLS - 1)
        return np.array([x, np.sin(4 * x), np.cos(4 * x), np.sin(9 * x)], dtype=np.float32)

    def step(self, action):
        self.pos = int(np.clip(self.pos + action - 1, 0, CELLS - 1))
        self.clock += 1
        reward = self.pos / (CELLS - 1)
        return self.obs(), reward, self.clock >= LIMIT, {"timeout": self.clock >= LIMIT}


class ReplayBuffer:
    def __init__(self, size, obs_dim, optimize_memory_usage=True):
        self.size, self.optimize = size, optimize_memory_usage
        self.observations = np.zeros((size, obs_dim), dtype=np.float32)
        if not self.optimize:
            self.next_observations = np.zeros((size, obs_dim), dtype=np.float32)
        self.actions = np.zeros(size, dtype=np.int64)
        self.rewards, self.dones = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.timeouts = np.zeros(size, np.float32)
        self.pos, self.full = 0, False

    def add(self, obs, next_obs, action, reward, done, info):
        self.observations[self.pos] = obs
        if self.optimize:
            self.observations[(self.pos + 1) % self.size] = next_obs
        else:
            self.next_observations[self.pos] = next_obs
        self.actions[self.pos], self.rewards[self.pos] = action, reward
        self.dones[self.pos], self.timeouts[self.pos] = done, info.get("timeout", False)
        self.pos = (self.pos + 1) % self.size
        self.full = self.full or self.pos == 0

    def sample(self, batch):
        if self.full:
            idx = (rng.integers(1, self.size, batch) + self.pos) % self.size
        else:
            idx = rng.integers(0, self.pos, batch)
        if self.optimize:
            nxt = self.observations[(idx + 1) % self.size]
        else:
            nxt = self.next_observations[idx]
        done = self.dones[idx] * (1 - self.timeouts[idx])
        return [torch.as_tensor(a) for a in
                (self.observations[idx], self.actions[idx], nxt, done, self.rewards[idx])]


def exact_values():
    q = np.zeros((CELLS, ACTIONS))
    for _ in range(400):
        for s in range(CELLS):
            for a in range(ACTIONS):
                n = int(np.clip(s + a - 1, 0, CELLS - 1))
                q[s, a] = n / (CELLS - 1) + GAMMA * q[n].max()
    return torch.tensor(q, dtype=torch.float32)


def all_states():
    env = Corridor()
    rows = []
    for p in range(CELLS):
        env.pos = p
        rows.append(env.obs())
    return torch.tensor(np.stack(rows))


env, eval_obs, truth = Corridor(), all_states(), exact_values()
buffer = ReplayBuffer(5000, 4, optimize_memory_usage=True)
q_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                      nn.Linear(64, ACTIONS))
target = copy.deepcopy(q_net).requires_grad_(False)
optimizer = torch.optim.Adam(q_net.parameters(), lr=2e-3)
obs, epsilon = env.reset(), 1.0
for step in range(1, 4201):
    if rng.random() < max(0.3, 1 - step / 2000):
        action = int(rng.integers(ACTIONS))
    else:
        with torch.no_grad():
            action = int(q_net(torch.tensor(obs)).argmax())
    nxt, reward, done, info = env.step(action)
    buffer.add(obs, nxt, action, reward, done, info)
    obs = env.reset() if done else nxt
    if step > 400 and step % 6 == 0:
        o, a, n, d, r = buffer.sample(64)
        with torch.no_grad():
            backup = r + GAMMA * (1 - d) * target(n).max(1).values
        loss = F.smooth_l1_loss(q_net(o).gather(1, a[:, None]).squeeze(1), backup)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), q_net.parameters()):
                t.lerp_(p, 0.2)
    if step % 800 == 0:
        with torch.no_grad():
            gap = (q_net(eval_obs) - truth).abs().mean().item()
        print(f"step {step} td_loss {loss.item():.5f} q_mean {q_net(eval_obs).mean():.3f}")
print("RESULT", round(gap, 5))
