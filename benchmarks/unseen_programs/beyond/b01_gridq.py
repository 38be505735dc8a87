"""Learns action values of a small grid world from a replay memory with a Q network."""
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)

SIZE, GAMMA = 5, 0.95
GOAL, PIT = (4, 4), (2, 2)
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]


def move(pos, action):
    r = min(max(pos[0] + MOVES[action][0], 0), SIZE - 1)
    c = min(max(pos[1] + MOVES[action][1], 0), SIZE - 1)
    nxt = (r, c)
    if nxt == GOAL:
        return nxt, 1.0, True
    if nxt == PIT:
        return nxt, -1.0, True
    return nxt, -0.04, False


def encode(positions):
    idx = torch.tensor([r * SIZE + c for r, c in positions])
    return F.one_hot(idx, SIZE * SIZE).float()


def exact_values(sweeps=200):
    q = {((r, c), a): 0.0 for r in range(SIZE) for c in range(SIZE) for a in range(4)}
    for _ in range(sweeps):
        for (pos, a) in q:
            nxt, reward, over = move(pos, a)
            best = 0.0 if over else max(q[(nxt, b)] for b in range(4))
            q[(pos, a)] = reward + GAMMA * best
    return q


class Memory:
    def __init__(self, capacity):
        self.items, self.capacity, self.at = [], capacity, 0

    def push(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.at] = item
        self.at = (self.at + 1) % self.capacity

    def batch(self, n):
        s, a, r, s2, d = zip(*random.sample(self.items, n))
        return (encode(s), torch.tensor(a), torch.tensor(r), encode(s2),
                torch.tensor(d, dtype=torch.float32))


net = nn.Sequential(nn.Linear(SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, 4))
target_net = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
memory = Memory(4000)
truth = exact_values()
cells = [(r, c) for r in range(SIZE) for c in range(SIZE) if (r, c) not in (GOAL, PIT)]


def learn():
    s, a, r, s2, done = memory.batch(64)
    q = net(s).gather(1, a[:, None]).squeeze(1)
    with torch.no_grad():
        best = target_net(s2).max(dim=1).values
        target = r + GAMMA * best
    loss = F.smooth_l1_loss(q, target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    optimizer.step()
    return loss.item()


def value_error():
    with torch.no_grad():
        q = net(encode(cells))
    want = torch.tensor([[truth[(p, a)] for a in range(4)] for p in cells])
    return (q - want).pow(2).mean().sqrt().item()


pos, step = random.choice(cells), 0
while step < 400:
    for _ in range(8):
        action = random.randrange(4)
        nxt, reward, over = move(pos, action)
        memory.push((pos, action, reward, nxt, over))
        pos = random.choice(cells) if over else nxt
    if len(memory.items) < 256:
        continue
    loss = learn()
    step += 1
    if step % 10 == 0:
        target_net.load_state_dict(net.state_dict())
    if step % 100 == 0:
        print(f"step {step} loss {loss:.4f} value error {value_error():.3f}")
print("RESULT", round(value_error(), 4))
