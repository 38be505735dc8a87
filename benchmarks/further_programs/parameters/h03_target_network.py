"""Fitted Q-learning on a chain; the target network is in no optimizer and is moved by Polyak averaging."""
import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1)
N, GAMMA = 10, 0.9


class Chain:
    """Go right to reach the end (+1), left gives a little (+0.1 at state 0)."""

    def reset(self):
        self.s, self.t = int(torch.randint(N, (1,))), 0
        return self.s

    def step(self, a):
        if torch.rand(()) < 0.1:
            a = 1 - a
        self.s = min(N - 1, self.s + 1) if a == 1 else max(0, self.s - 1)
        self.t += 1
        r = 1.0 if self.s == N - 1 else (0.1 if self.s == 0 else 0.0)
        return self.s, r, self.t >= 20


def exact():
    v = torch.zeros(N)
    s = torch.arange(N)
    right, left = (s + 1).clamp(max=N - 1), (s - 1).clamp(min=0)
    r = torch.zeros(N)
    r[N - 1], r[0] = 1.0, 0.1
    for _ in range(300):
        go = r + GAMMA * v
        q = torch.stack([0.9 * go[left] + 0.1 * go[right], 0.9 * go[right] + 0.1 * go[left]], 1)
        v = q.max(1).values
    return q


q_net = nn.Sequential(nn.Embedding(N, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(q_net)
for p in target.parameters():
    p.requires_grad_(False)
opt = torch.optim.Adam(q_net.parameters(), lr=2e-3)
env, memory = Chain(), []
s = env.reset()
for _ in range(3000):
    a = int(torch.randint(2, (1,)))
    s2, r, done = env.step(a)
    memory.append((s, a, r, s2))
    s = env.reset() if done else s2
S, A, R, S2 = (torch.tensor(c) for c in zip(*memory))
for it in range(1500):
    i = torch.randint(len(S), (64,))
    with torch.no_grad():
        # the time limit is no terminal state, so always bootstrap
        y = R[i] + GAMMA * target(S2[i]).max(1).values
    q = q_net(S[i]).gather(1, A[i, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for t, p in zip(target.parameters(), q_net.parameters()):
            t.lerp_(p, 0.02)
    if it % 500 == 0:
        print(it, loss.item())
with torch.no_grad():
    print("RESULT", F.mse_loss(q_net(torch.arange(N)), exact()).item())
