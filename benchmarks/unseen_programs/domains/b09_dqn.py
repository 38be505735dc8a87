import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class Room:
    """A robot in the unit square has to reach the charger within 30 moves."""
    MOVES = np.array([[0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1]], dtype=np.float32)
    GOAL = np.array([0.8, 0.2], dtype=np.float32)

    def reset(self):
        self.pos = np.random.rand(2).astype(np.float32)
        self.t = 0
        return self.pos

    def step(self, action):
        self.pos += self.MOVES[action]
        np.clip(self.pos, 0.0, 1.0, out=self.pos)
        self.t += 1
        reached = bool(np.abs(self.pos - self.GOAL).sum() < 0.15)
        reward = 1.0 if reached else -0.02
        return self.pos, reward, reached, self.t >= 30


class ReplayBuffer:
    def __init__(self, capacity=5000):
        self.data = deque(maxlen=capacity)

    def push(self, *transition):
        self.data.append(transition)

    def sample(self, n):
        s, a, r, s2, d = zip(*random.sample(self.data, n))
        return (torch.as_tensor(np.stack(s)), torch.tensor(a), torch.tensor(r, dtype=torch.float32),
                torch.as_tensor(np.stack(s2)), torch.tensor(d, dtype=torch.float32))

    def __len__(self):
        return len(self.data)


def qnet():
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


class Agent:
    def __init__(self):
        self.q, self.target = qnet(), qnet()
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.buffer = ReplayBuffer()
        self.updates = 0

    @torch.no_grad()
    def act(self, s, eps):
        if random.random() < eps:
            return random.randrange(4)
        return int(self.q(torch.from_numpy(s).unsqueeze(0)).argmax())

    def learn(self):
        s, a, r, s2, d = self.buffer.sample(64)
        with torch.no_grad():
            best = self.q(s2).argmax(1, keepdim=True)
            y = r + 0.95 * (1 - d) * self.target(s2).gather(1, best).squeeze(1)
        q = self.q(s).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(q, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % 100 == 0:
            self.target.load_state_dict(self.q.state_dict())
        return loss.item()


def evaluate(agent, env, episodes=60):
    wins = 0
    for _ in range(episodes):
        s, done, timeout = env.reset(), False, False
        while not (done or timeout):
            s, _, done, timeout = env.step(agent.act(s, 0.02))
        wins += done
    return wins / episodes


def main():
    env, agent = Room(), Agent()
    for episode in range(140):
        eps = max(0.1, 1 - episode / 80)
        s, done, timeout, loss = env.reset(), False, False, 0.0
        while not (done or timeout):
            a = agent.act(s, eps)
            s2, r, done, timeout = env.step(a)
            agent.buffer.push(s, a, r, s2, done)
            s = s2
            if len(agent.buffer) >= 300:
                loss = agent.learn()
        if episode % 20 == 19:
            print(f"episode {episode} eps {eps:.2f} td {loss:.4f}")
    rate = evaluate(agent, Room())
    print("success rate", rate)
    print("RESULT", 1 - rate)


main()
