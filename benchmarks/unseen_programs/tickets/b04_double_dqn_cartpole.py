"""Train a Double DQN agent on a hand-written cart-pole and report the missing balance steps."""
import math
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1)
random.seed(1)
np.random.seed(1)


class CartPole:
    MAX_STEPS = 200

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.s = self.rng.uniform(-0.05, 0.05, 4)
        self.t = 0
        return self.s.astype(np.float32)

    def step(self, action):
        x, xd, th, thd = self.s
        force = 10.0 if action == 1 else -10.0
        tmp = (force + 0.05 * thd ** 2 * math.sin(th)) / 1.1
        thacc = (9.8 * math.sin(th) - math.cos(th) * tmp) / (
            0.5 * (4.0 / 3.0 - 0.1 * math.cos(th) ** 2 / 1.1))
        xacc = tmp - 0.05 * thacc * math.cos(th) / 1.1
        self.s = np.array([x + 0.02 * xd, xd + 0.02 * xacc, th + 0.02 * thd, thd + 0.02 * thacc])
        self.t += 1
        fell = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.2095
        return self.s.astype(np.float32), 1.0, fell, fell or self.t >= self.MAX_STEPS


class MLP(nn.Module):
    def __init__(self, n_states, n_actions, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(n_states, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, n_actions)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class ReplayBuffer:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, *transition):
        self.buffer.append(transition)

    def sample(self, n):
        cols = zip(*random.sample(self.buffer, n))
        s, a, r, s2, d = [torch.from_numpy(np.array(c)) for c in cols]
        return s, a.long()[:, None], r.float()[:, None], s2, d.float()[:, None]


class DoubleDQN:
    def __init__(self, model, memory, cfg):
        self.cfg, self.memory, self.sample_count = cfg, memory, 0
        self.policy_net = model
        self.target_net = model
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=cfg["lr"])

    def sample_action(self, state):
        self.sample_count += 1
        eps = self.cfg["eps_end"] + (1 - self.cfg["eps_end"]) * math.exp(
            -self.sample_count / self.cfg["eps_decay"])
        return random.randrange(2) if random.random() < eps else self.predict_action(state)

    @torch.no_grad()
    def predict_action(self, state):
        return int(self.policy_net(torch.from_numpy(state)[None]).argmax(1))

    def update(self):
        if len(self.memory.buffer) < self.cfg["batch_size"] * 2:
            return None
        s, a, r, s2, d = self.memory.sample(self.cfg["batch_size"])
        q = self.policy_net(s).gather(1, a)
        next_a = self.policy_net(s2).argmax(1, keepdim=True)
        next_q = self.target_net(s2).gather(1, next_a)
        expected = r + self.cfg["gamma"] * next_q * (1 - d)
        loss = F.mse_loss(q, expected)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy_net.parameters(), 10.0)
        self.optimizer.step()
        if self.sample_count % self.cfg["target_update"] == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())
        return loss.item()


def run_episode(env, agent, train):
    s, steps, done = env.reset(), 0, False
    while not done:
        a = agent.sample_action(s) if train else agent.predict_action(s)
        s2, r, fell, done = env.step(a)
        if train:
            agent.memory.push(s, a, r, s2, fell)
            if agent.sample_count % 2 == 0:
                agent.update()
        s, steps = s2, steps + 1
    return steps


def main():
    cfg = dict(lr=1e-3, gamma=0.98, batch_size=64, eps_end=0.02, eps_decay=900, target_update=100,
               train_steps=5000, eval_from=2000, eval_every=500)
    env, agent = CartPole(0), DoubleDQN(MLP(4, 2), ReplayBuffer(20000), cfg)
    lengths, evals, due = [], [], cfg["eval_from"]
    while agent.sample_count < cfg["train_steps"]:
        lengths.append(run_episode(env, agent, True))
        if agent.sample_count >= due:
            due += cfg["eval_every"]
            evals.append(np.mean([run_episode(CartPole(100 + i), agent, False) for i in range(4)]))
            print(f"episode {len(lengths)} steps {agent.sample_count} "
                  f"mean_len {np.mean(lengths[-25:]):.1f} greedy {evals[-1]:.1f}")
    print("RESULT", 200 - float(np.mean(evals)))


if __name__ == "__main__":
    main()
